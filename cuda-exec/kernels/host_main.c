/* Runs launches of fp8.inc on the host, for the tests: launches come on standard input, their results go to standard output. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host_shim.h"

#include "fp8.inc"

typedef void Kernel(void *wide, unsigned char *values, unsigned int *scales, BagualuShape shape);

static const struct {
    const char *name;
    Kernel *run;
    int back;
} kernels[] = {
#define ENTRIES(source, SOURCE, format, FORMAT)                                                      \
    {"bagualu_quantize_" #source "_" #format, bagualu_quantize_##source##_##format, 0},              \
    {"bagualu_dequantize_" #source "_" #format, bagualu_dequantize_##source##_##format, 1},
    BAGUALU_FP8_CASTS(ENTRIES)};

/* What comes before a launch's data: sizes in bytes, and by how much its buffers miss an alignment of 16 bytes. */
typedef struct {
    char name[48];
    BagualuShape shape;
    unsigned long long grid, wide, values, scales, offset;
} Request;

static void need(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void receive(void *to, size_t bytes) {
    need(fread(to, 1, bytes, stdin) == bytes, "the input ends early");
}

static void answer(const void *from, size_t bytes) {
    need(fwrite(from, 1, bytes, stdout) == bytes, "the output is closed");
}

/* Exactly so large that a sanitizer sees a step beyond it. */
static char *buffer(size_t bytes) {
    char *memory = (char *)malloc(bytes > 0 ? bytes : 1);
    need(memory != NULL, "out of memory");
    memset(memory, 0x55, bytes);
    return memory;
}

static void serve(const Request *request) {
    size_t offset = request->offset, i;
    char *wide = buffer(request->wide + offset), *values = buffer(request->values + offset);
    char *scales = buffer(request->scales);
    for (i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, request->name) == 0) {
            break;
        }
    }
    need(i < sizeof kernels / sizeof *kernels, request->name);
    if (kernels[i].back) {
        receive(values + offset, request->values);
        receive(scales, request->scales);
    } else {
        receive(wide + offset, request->wide);
    }
    BAGUALU_LAUNCH(kernels[i].run, request->grid, wide + offset, (unsigned char *)values + offset,
                   (unsigned int *)scales, request->shape)
    if (kernels[i].back) {
        answer(wide + offset, request->wide);
    } else {
        answer(values + offset, request->values);
        answer(scales, request->scales);
    }
    free(wide);
    free(values);
    free(scales);
}

int main(void) {
    Request request;
    while (fread(&request, sizeof request, 1, stdin) == 1) {
        request.name[sizeof request.name - 1] = 0;
        serve(&request);
    }
    return 0;
}
