/* The casts' kernels, from their own source, as work of the stub's streams. */
#include "stub.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/host_shim.h"

#include "../../kernels/fp8.inc"

enum { NOT_FOUND = 500, BAD_IMAGE = 200 };

typedef void Kernel(void *wide, unsigned char *values, unsigned int *scales, BagualuShape shape);

struct function {
    const char *name;
    Kernel *run;
};

static struct function functions[] = {
#define ENTRIES(source, SOURCE, format, FORMAT)                                              \
    {"bagualu_quantize_" #source "_" #format, bagualu_quantize_##source##_##format},         \
    {"bagualu_dequantize_" #source "_" #format, bagualu_dequantize_##source##_##format},
    BAGUALU_FP8_CASTS(ENTRIES)};

struct launch {
    Kernel *run;
    unsigned grid;
    void *wide, *values, *scales;
    BagualuShape shape;
};

/* The shim counts groups in statics. */
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;

/* A module is named by its text. */
static const char IMAGE[] = "kernels of the stub\n";

int stub_module_load(void **module, const void *image) {
    if (stub_current() < 0) return BAD_CONTEXT;
    if (strcmp(image, IMAGE)) return BAD_IMAGE;
    return *module = (void *)IMAGE, OK;
}

int stub_module_unload(void *module) { return module == IMAGE ? OK : BAD_HANDLE; }

int stub_module_function(void **function, void *module, const char *name) {
    if (module != IMAGE) return BAD_HANDLE;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name)) return *function = &functions[i], OK;
    return NOT_FOUND;
}

static void run(void *argument) {
    struct launch *launch = argument;
    pthread_mutex_lock(&running);
    BAGUALU_LAUNCH(launch->run, launch->grid, launch->wide, launch->values, launch->scales, launch->shape)
    pthread_mutex_unlock(&running);
    free(launch);
}

int stub_launch(void *function, unsigned grid, unsigned block, struct stream *stream, void **arguments) {
    struct launch *launch;
    if (grid == 0 || block != BAGUALU_THREADS) return INVALID;
    launch = malloc(sizeof *launch);
    launch->run = ((struct function *)function)->run;
    launch->grid = grid;
    /* As the vendors do: values are taken from where the pointers point, now. */
    launch->wide = *(void **)arguments[0];
    launch->values = *(void **)arguments[1];
    launch->scales = *(void **)arguments[2];
    launch->shape = *(BagualuShape *)arguments[3];
    int code = stub_work(stream, run, launch);
    if (code) free(launch);
    return code;
}
