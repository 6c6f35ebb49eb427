#include "stub.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256, CAPACITY = 64 << 20, LARGEST_PINNED = 1 << 30 };
enum kind { COPY, MARK, WAIT, RUN, CALL, END };

/* What an event marks: shared by the event, the stream that is to reach it and those that wait. */
struct mark {
    int done, owners;
};

struct event {
    struct mark *mark;
};

struct work {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct mark *mark;
    void (*function)(void *);
    struct work *next;
};

struct stream {
    struct work *first, **last;
    int device;
};

/* Before every allocation. */
union header {
    struct {
        size_t bytes;
        int device; /* -1: pinned */
    } of;
    char pad[ALIGNMENT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* The vendors run host functions on one thread. */
static pthread_mutex_t calling = PTHREAD_MUTEX_INITIALIZER;
static struct stream *default_streams[DEVICES];
static size_t used[DEVICES];
static int broken, live;
/* Streams and events until one is refused, -1: none is; with what. */
static int until_refused = -1, refused_with;
static _Thread_local int current = -1;

int stub_current(void) { return current; }
void stub_set_current(int device) { current = device; }

static int ready(void) { return broken ? broken : current < 0 ? BAD_CONTEXT : OK; }

static int made(void) { return until_refused >= 0 && until_refused-- == 0 ? refused_with : OK; }

/* Memory */

static int allocate(void **address, size_t bytes, int device) {
    union header *header;
    if (bytes == 0) return INVALID;
    if (posix_memalign((void **)&header, ALIGNMENT, sizeof *header + bytes)) return NO_MEMORY;
    header->of.bytes = bytes;
    header->of.device = device;
    *address = header + 1;
    live++;
    return OK;
}

static int release(void *address, int device) {
    union header *header = (union header *)address - 1;
    if (!address || header->of.device != device) return INVALID;
    if (device >= 0) used[device] -= header->of.bytes;
    free(header);
    live--;
    return OK;
}

int stub_memory_info(size_t *unused, size_t *total) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) *total = CAPACITY, *unused = CAPACITY - used[current];
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_allocate(void **address, size_t bytes) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code && bytes > CAPACITY - used[current]) code = NO_MEMORY;
    if (!code && !(code = allocate(address, bytes, current))) used[current] += bytes;
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_free(void *address) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) code = release(address, current);
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_allocate_pinned(void **address, size_t bytes, unsigned flags) {
    pthread_mutex_lock(&lock);
    int code = ready();
    /* 4 would be write-combined. */
    if (!code && (flags & ~1u)) code = INVALID;
    if (!code && bytes > LARGEST_PINNED) code = NO_MEMORY;
    if (!code) code = allocate(address, bytes, -1);
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_free_pinned(void *address) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) code = release(address, -1);
    pthread_mutex_unlock(&lock);
    return code;
}

/* Streams. The lock is held outside of copies and calls. */

static void let_go(struct mark *mark) {
    if (--mark->owners == 0) free(mark);
}

static void *run(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct work *work = stream->first;
        if (!work) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        enum kind kind = work->kind;
        if (kind == WAIT)
            while (!work->mark->done) pthread_cond_wait(&changed, &lock);
        if (kind == COPY || kind == RUN || kind == CALL) {
            pthread_mutex_unlock(&lock);
            if (kind == COPY) memcpy(work->to, work->from, work->bytes);
            if (kind == RUN) work->function(work->to);
            if (kind == CALL) {
                pthread_mutex_lock(&calling);
                work->function(work->to);
                pthread_mutex_unlock(&calling);
            }
            pthread_mutex_lock(&lock);
        }
        if (kind == MARK) work->mark->done = 1;
        if (kind == MARK || kind == WAIT) let_go(work->mark);
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        free(work);
        pthread_cond_broadcast(&changed);
        if (kind == END) break;
    }
    free(stream);
    live--;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *start(void) {
    struct stream *stream = calloc(1, sizeof *stream);
    pthread_t thread;
    stream->last = &stream->first;
    stream->device = current;
    if (pthread_create(&thread, NULL, run, stream)) {
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    live++;
    return stream;
}

/* The stream itself, or the device's default one. */
static struct stream *of(struct stream *stream) {
    if (stream) return stream;
    if (!default_streams[current]) default_streams[current] = start(), live--;
    return default_streams[current];
}

static int submit(struct stream *stream, struct work work) {
    struct work *copy;
    stream = of(stream);
    if (!stream || stream->device != current) return BAD_HANDLE;
    copy = malloc(sizeof *copy);
    *copy = work;
    copy->next = NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_broadcast(&changed);
    return OK;
}

static int submit_locked(struct stream *stream, struct work work) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) code = submit(stream, work);
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_stream_create(struct stream **stream, unsigned flags, int priority) {
    pthread_mutex_lock(&lock);
    int code = ready();
    /* Only streams that do not wait for the default one overlap with a framework's. */
    if (!code && (flags != 1 || priority > 0 || priority < -5)) code = INVALID;
    if (!code) code = made();
    if (!code && !(*stream = start())) code = NO_MEMORY;
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_stream_destroy(struct stream *stream) { return stream ? submit_locked(stream, (struct work){.kind = END}) : BAD_HANDLE; }

int stub_copy(void *to, const void *from, size_t bytes, struct stream *stream) {
    return submit_locked(stream, (struct work){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

int stub_work(struct stream *stream, void (*function)(void *), void *data) {
    return submit_locked(stream, (struct work){.kind = RUN, .function = function, .to = data});
}

int stub_host_function(struct stream *stream, void (*function)(void *), void *data) {
    return submit_locked(stream, (struct work){.kind = CALL, .function = function, .to = data});
}

/* Events */

static int mark(struct stream *stream, struct mark **made) {
    struct mark *mark = calloc(1, sizeof *mark);
    mark->owners = 2;
    int code = submit(stream, (struct work){.kind = MARK, .mark = mark});
    if (code) free(mark);
    else *made = mark;
    return code;
}

/* Waits for a mark of which the caller is an owner, with the lock held. */
static void wait_for(struct mark *mark) {
    while (!mark->done) pthread_cond_wait(&changed, &lock);
    let_go(mark);
}

int stub_stream_synchronize(struct stream *stream) {
    struct mark *end;
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code && !(code = mark(stream, &end))) {
        wait_for(end);
        code = broken;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_event_create(struct event **event, unsigned flags) {
    pthread_mutex_lock(&lock);
    int code = ready();
    /* 2: no time is taken. */
    if (!code && !(flags & 2)) code = INVALID;
    if (!code) code = made();
    if (!code) *event = calloc(1, sizeof **event), live++;
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_event_destroy(struct event *event) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) {
        if (event->mark) let_go(event->mark);
        free(event);
        live--;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_event_record(struct event *event, struct stream *stream) {
    struct mark *made;
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code && !(code = mark(stream, &made))) {
        if (event->mark) let_go(event->mark);
        event->mark = made;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_stream_wait(struct stream *stream, struct event *event) {
    pthread_mutex_lock(&lock);
    int code = ready();
    /* The backend is to know what it never recorded. */
    if (!code && !event->mark) code = BAD_HANDLE;
    if (!code && !(code = submit(stream, (struct work){.kind = WAIT, .mark = event->mark}))) event->mark->owners++;
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_event_query(struct event *event) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code) code = !event->mark ? BAD_HANDLE : event->mark->done ? OK : NOT_READY;
    pthread_mutex_unlock(&lock);
    return code;
}

int stub_event_synchronize(struct event *event) {
    pthread_mutex_lock(&lock);
    int code = ready();
    if (!code && !event->mark) code = BAD_HANDLE;
    if (!code) {
        event->mark->owners++;
        wait_for(event->mark);
        code = broken;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

const char *stub_error_text(int code) {
    return code == OK ? "success" : code == NO_MEMORY ? "out of memory" : "a failure of the stub";
}

void stub_break(int code) {
    pthread_mutex_lock(&lock);
    broken = code;
    pthread_mutex_unlock(&lock);
}

void stub_refuse_after(int count, int code) {
    pthread_mutex_lock(&lock);
    until_refused = count, refused_with = code;
    pthread_mutex_unlock(&lock);
}

int stub_live(void) {
    pthread_mutex_lock(&lock);
    int count = live;
    pthread_mutex_unlock(&lock);
    return count;
}
