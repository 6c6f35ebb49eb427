/* HIP's names. A thread starts on device 0, and the last error of a thread is kept until it is asked for. */
#include "stub.h"

static _Thread_local int last_error;

static int on_device(void) {
    if (stub_current() < 0) stub_set_current(0);
    return OK;
}

static int keep(int code) {
    if (code) last_error = code;
    return code;
}

#define HIP(call) (on_device(), keep(call))

int hipGetDeviceCount(int *count) { return *count = DEVICES, OK; }
int hipGetDevice(int *device) { return on_device(), *device = stub_current(), OK; }
int hipSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return keep(BAD_DEVICE);
    return stub_set_current(device), OK;
}
const char *hipGetErrorString(int code) { return stub_error_text(code); }
int hipGetLastError(void) {
    int code = last_error;
    last_error = OK;
    return code;
}
int hipMemGetInfo(size_t *unused, size_t *total) { return HIP(stub_memory_info(unused, total)); }
int hipMalloc(void **address, size_t bytes) { return HIP(stub_allocate(address, bytes)); }
int hipFree(void *address) { return HIP(stub_free(address)); }
int hipHostMalloc(void **address, size_t bytes, unsigned flags) { return HIP(stub_allocate_pinned(address, bytes, flags)); }
int hipHostFree(void *address) { return HIP(stub_free_pinned(address)); }
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, struct stream *stream) {
    return HIP(kind < 1 || kind > 3 ? INVALID : stub_copy(to, from, bytes, stream));
}
int hipDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, OK; }
int hipStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    return HIP(stub_stream_create(stream, flags, priority));
}
int hipStreamDestroy(struct stream *stream) { return HIP(stub_stream_destroy(stream)); }
int hipStreamSynchronize(struct stream *stream) { return HIP(stub_stream_synchronize(stream)); }
int hipStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    return HIP(flags ? INVALID : stub_stream_wait(stream, event));
}
int hipEventCreateWithFlags(struct event **event, unsigned flags) { return HIP(stub_event_create(event, flags)); }
int hipEventDestroy(struct event *event) { return HIP(stub_event_destroy(event)); }
int hipEventRecord(struct event *event, struct stream *stream) { return HIP(stub_event_record(event, stream)); }
int hipEventQuery(struct event *event) { return HIP(stub_event_query(event)); }
int hipEventSynchronize(struct event *event) { return HIP(stub_event_synchronize(event)); }
int hipLaunchHostFunc(struct stream *stream, void (*function)(void *), void *data) {
    return HIP(stub_host_function(stream, function, data));
}
int hipModuleLoadData(void **module, const void *image) { return HIP(stub_module_load(module, image)); }
int hipModuleUnload(void *module) { return HIP(stub_module_unload(module)); }
int hipModuleGetFunction(void **function, void *module, const char *name) {
    return HIP(stub_module_function(function, module, name));
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, struct stream *stream, void **arguments, void **extra) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || extra) return HIP(INVALID);
    return HIP(stub_launch(function, gx, bx, stream, arguments));
}
