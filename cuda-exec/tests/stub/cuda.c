/* The CUDA driver's names. A thread starts without a context and keeps a stack of them. */
#include "stub.h"

#include <stdlib.h>

enum { DEPTH = 16, NOT_INITIALIZED = 3 };

static int initialized;
static _Thread_local int stack[DEPTH], depth;

/* Contexts are told from null by counting from 1. */
static void *context(int device) { return (void *)(uintptr_t)(device + 1); }

/* STUB_INIT: what a driver without a device, or the toolkit's stub, says. */
int cuInit(unsigned flags) {
    const char *code = getenv("STUB_INIT");
    return flags ? INVALID : code ? atoi(code) : (initialized = 1, OK);
}
int cuDeviceGetCount(int *count) { return initialized ? (*count = DEVICES, OK) : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return BAD_DEVICE;
    return *device = ordinal, OK;
}
int cuDevicePrimaryCtxRetain(void **made, int device) { return *made = context(device), OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < DEVICES ? OK : BAD_DEVICE; }
int cuCtxGetCurrent(void **current) { return *current = context(stub_current()), OK; }
int cuCtxPushCurrent_v2(void *pushed) {
    if (depth == DEPTH) return INVALID;
    stack[depth++] = stub_current();
    stub_set_current((int)(uintptr_t)pushed - 1);
    return OK;
}
int cuCtxPopCurrent_v2(void **popped) {
    if (depth == 0) return BAD_CONTEXT;
    *popped = context(stub_current());
    stub_set_current(stack[--depth]);
    return OK;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return stub_current() < 0 ? BAD_CONTEXT : (*least = 0, *greatest = -5, OK);
}
int cuGetErrorString(int code, const char **text) { return *text = stub_error_text(code), OK; }
int cuMemGetInfo_v2(size_t *unused, size_t *total) { return stub_memory_info(unused, total); }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return stub_allocate((void **)address, bytes); }
int cuMemFree_v2(uint64_t address) { return stub_free((void *)address); }
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { return stub_allocate_pinned(address, bytes, flags); }
int cuMemFreeHost(void *address) { return stub_free_pinned(address); }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *stream) {
    return stub_copy(to, (void *)from, bytes, stream);
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *stream) {
    return stub_copy((void *)to, from, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct stream *stream) {
    return stub_copy((void *)to, (void *)from, bytes, stream);
}
int cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    return stub_stream_create(stream, flags, priority);
}
int cuStreamDestroy_v2(struct stream *stream) { return stub_stream_destroy(stream); }
int cuStreamSynchronize(struct stream *stream) { return stub_stream_synchronize(stream); }
int cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    return flags ? INVALID : stub_stream_wait(stream, event);
}
int cuEventCreate(struct event **event, unsigned flags) { return stub_event_create(event, flags); }
int cuEventDestroy_v2(struct event *event) { return stub_event_destroy(event); }
int cuEventRecord(struct event *event, struct stream *stream) { return stub_event_record(event, stream); }
int cuEventQuery(struct event *event) { return stub_event_query(event); }
int cuEventSynchronize(struct event *event) { return stub_event_synchronize(event); }
int cuLaunchHostFunc(struct stream *stream, void (*function)(void *), void *data) {
    return stub_host_function(stream, function, data);
}
int cuDriverGetVersion(int *version) { return *version = 12080, OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return device >= DEVICES ? BAD_DEVICE : (*value = attribute == 75 ? 9 : 0, OK);
}
int cuModuleLoadData(void **module, const void *image) { return stub_module_load(module, image); }
int cuModuleUnload(void *module) { return stub_module_unload(module); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return stub_module_function(function, module, name);
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, struct stream *stream, void **arguments, void **extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || extra) return INVALID;
    return stub_launch(function, gx, bx, stream, arguments);
}
