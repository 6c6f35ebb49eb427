/* Devices made of threads, for tests of what calls the vendors' libraries: two devices, each stream a thread.
 * It keeps to what the vendors document and is strict where they are: a call without its device current fails. */
#ifndef STUB_H
#define STUB_H

#include <stddef.h>
#include <stdint.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, BAD_DEVICE = 101, BAD_CONTEXT = 201, BAD_HANDLE = 400, NOT_READY = 600 };
enum { DEVICES = 2 };

struct stream;
struct event;

/* The device that the calling thread has made current, -1 for none: of CUDA's contexts, of HIP's devices. */
int stub_current(void);
void stub_set_current(int device);

int stub_memory_info(size_t *unused, size_t *total);
int stub_allocate(void **address, size_t bytes);
int stub_free(void *address);
int stub_allocate_pinned(void **address, size_t bytes, unsigned flags);
int stub_free_pinned(void *address);

int stub_stream_create(struct stream **stream, unsigned flags, int priority);
int stub_stream_destroy(struct stream *stream);
int stub_stream_synchronize(struct stream *stream);
int stub_stream_wait(struct stream *stream, struct event *event);
int stub_copy(void *to, const void *from, size_t bytes, struct stream *stream);
/* As a kernel: beside other work. */
int stub_work(struct stream *stream, void (*function)(void *), void *data);
/* As the vendors run host functions: one at a time. */
int stub_host_function(struct stream *stream, void (*function)(void *), void *data);

int stub_event_create(struct event **event, unsigned flags);
int stub_event_destroy(struct event *event);
int stub_event_record(struct event *event, struct stream *stream);
int stub_event_query(struct event *event);
int stub_event_synchronize(struct event *event);

int stub_module_load(void **module, const void *image);
int stub_module_unload(void *module);
int stub_module_function(void **function, void *module, const char *name);
int stub_launch(void *function, unsigned grid, unsigned block, struct stream *stream, void **arguments);

const char *stub_error_text(int code);

/* For tests: every call fails with `code` from now on; the one stream or event made after `count` more of them does; how many
 * streams, events and allocations live. */
void stub_break(int code);
void stub_refuse_after(int count, int code);
int stub_live(void);

#endif
