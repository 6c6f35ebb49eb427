/* NCCL's names, over the ranks of one process. Communicators do not block, and end only by abort. */
#include "stub.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, ARGUMENT = 4, IN_PROGRESS = 7, UINT64 = 5, MAX = 2 };

struct id {
    char bytes[128];
};

struct config {
    size_t bytes;
    unsigned magic, version;
    int blocking;
};

struct group {
    struct id id;
    int size, joined, given, taken;
    uint64_t *values[RANKS];
    struct group *next;
};

struct communicator {
    struct group *group;
    int rank, ended, working;
};

struct call {
    struct communicator *communicator;
    const uint64_t *from;
    uint64_t *to;
    size_t count;
    int largest;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct group *groups;

const char *ncclGetErrorString(int code) { return code == ARGUMENT ? "invalid argument" : "an error of the stub"; }

int ncclGetUniqueId(struct id *id) {
    static unsigned char count;
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    /* The last byte too, so that one cut short is another. */
    id->bytes[0] = id->bytes[127] = (char)++count;
    pthread_mutex_unlock(&lock);
    return OK;
}

int ncclCommInitRankConfig(struct communicator **made, int size, struct id id, int rank, const struct config *config) {
    struct group *group;
    if (config->bytes != sizeof *config || config->magic != 0xcafebeef || config->version != 21400 || config->blocking)
        return ARGUMENT;
    if (size > RANKS || rank >= size || stub_current() < 0) return ARGUMENT;
    pthread_mutex_lock(&lock);
    for (group = groups; group; group = group->next)
        if (!memcmp(&group->id, &id, sizeof id)) break;
    if (!group) {
        group = calloc(1, sizeof *group);
        group->id = id, group->size = size, group->next = groups, groups = group;
    }
    group->joined++;
    *made = calloc(1, sizeof **made);
    (*made)->group = group, (*made)->rank = rank;
    pthread_mutex_unlock(&lock);
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(struct communicator *communicator, int *state) {
    pthread_mutex_lock(&lock);
    *state = communicator->group->joined < communicator->group->size ? IN_PROGRESS : OK;
    pthread_mutex_unlock(&lock);
    return OK;
}

int ncclCommAbort(struct communicator *communicator) {
    pthread_mutex_lock(&lock);
    communicator->ended = 1;
    pthread_cond_broadcast(&changed);
    while (communicator->working) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    free(communicator);
    return OK;
}

/* Runs on the stream's thread, and waits there for the other ranks as a kernel would. */
static void run(void *argument) {
    struct call *call = argument;
    struct communicator *communicator = call->communicator;
    struct group *group = communicator->group;
    size_t bytes = call->count * sizeof(uint64_t);
    pthread_mutex_lock(&lock);
    while (group->values[communicator->rank] && !communicator->ended) pthread_cond_wait(&changed, &lock);
    if (!communicator->ended) {
        memcpy(group->values[communicator->rank] = malloc(bytes), call->from, bytes);
        group->given++;
        pthread_cond_broadcast(&changed);
        while (group->given < group->size && !communicator->ended) pthread_cond_wait(&changed, &lock);
    }
    if (!communicator->ended) {
        if (call->largest) memset(call->to, 0, bytes);
        for (int rank = 0; rank < group->size; rank++)
            for (size_t i = 0; i < call->count; i++) {
                uint64_t value = group->values[rank][i];
                if (!call->largest) call->to[rank * call->count + i] = value;
                else if (value > call->to[i]) call->to[i] = value;
            }
        if (++group->taken == group->size) {
            for (int rank = 0; rank < group->size; rank++) free(group->values[rank]), group->values[rank] = NULL;
            group->given = group->taken = 0;
        }
    }
    communicator->working--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(call);
}

static int submit(struct call call, struct communicator *communicator, int kind, struct stream *stream) {
    struct call *copy;
    if (kind != UINT64) return ARGUMENT;
    copy = malloc(sizeof *copy);
    *copy = call;
    copy->communicator = communicator;
    pthread_mutex_lock(&lock);
    communicator->working++;
    pthread_mutex_unlock(&lock);
    return stub_work(stream, run, copy) ? ARGUMENT : OK;
}

int ncclAllGather(const void *from, void *to, size_t count, int kind, struct communicator *communicator, struct stream *stream) {
    return submit((struct call){.from = from, .to = to, .count = count}, communicator, kind, stream);
}

int ncclAllReduce(const void *from, void *to, size_t count, int kind, int operation, struct communicator *communicator,
                  struct stream *stream) {
    if (operation != MAX) return ARGUMENT;
    return submit((struct call){.from = from, .to = to, .count = count, .largest = 1}, communicator, kind, stream);
}
