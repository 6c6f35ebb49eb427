/*
 * One pipeline rank on the host device, in C: random rows, real buffers, a plan for each micro-batch.
 *
 *     pipeline [DEVICE_KB [HOST_KB]]
 *
 * Every layer saves four tensors: its input, which is kept; a hidden one and an output, which may be copied to the host or
 * made again; and scores, which may be held in FP8. Before each backward their contents are checked. With little memory
 * more is offloaded and recomputed; with less than any plan needs, the program says how much that is.
 */
#include <bagualu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, RANKS = 4, MICRO_BATCHES = 8, BALANCED = 128, ITERATIONS = 6 };
enum { INPUT, HIDDEN, OUTPUT, SCORES, TENSORS };
enum { ROW = 512, INPUT_BYTES = 64 * ROW, ROW_SCORES = 64, ROW_SCORE_BYTES = ROW_SCORES * 4 };
/* A row of scores in FP8: the values, and one scale of four bytes. */
enum { ROW_QUANTIZED = ROW_SCORES + 4 };

static void check(bagualu_status status) {
    if (status == BAGUALU_STATUS_OK) return;
    fprintf(stderr, "pipeline: %s: %s\n", bagualu_status_name(status), bagualu_last_message(NULL));
    exit(1);
}

/* ---- The program's operators: functions that run on the compute stream. ---- */

typedef enum { FILL, ADD_ONE, SCORE, VERIFY, VERIFY_SCORES } kind;

typedef struct {
    kind kind;
    unsigned char byte;
    bagualu_memory from, to;
} work;

/* Counted by the compute stream alone, read when it is idle. */
static unsigned long long verified, wrong;

static unsigned char *bytes_of(bagualu_memory memory) {
    return (unsigned char *)(uintptr_t)memory.address;
}

static float score(unsigned char byte, uint64_t index) {
    return (float)((byte + index * 13) % 61) - 30.0f;
}

static void run(void *data) {
    work *w = data;
    unsigned char *to = bytes_of(w->to);
    const unsigned char *from = bytes_of(w->from);
    switch (w->kind) {
    case FILL:
        memset(to, w->byte, w->to.bytes);
        break;
    case ADD_ONE:
        /* The input has a fixed number of rows: its first byte stands for all. */
        if (w->to.bytes > 0) memset(to, from[0] + 1, w->to.bytes);
        break;
    case SCORE:
        for (uint64_t i = 0; i < w->to.bytes / 4; i++) ((float *)(void *)to)[i] = score(from[0], i);
        break;
    case VERIFY:
        verified++;
        for (uint64_t i = 0; i < w->from.bytes; i++)
            if (from[i] != w->byte) {
                wrong++;
                break;
            }
        break;
    case VERIFY_SCORES:
        verified++;
        for (uint64_t i = 0; i < w->from.bytes / 4; i++) {
            float expected = score(w->byte, i), found = ((const float *)(const void *)from)[i];
            float bound = (expected < 0 ? -expected : expected) / 16, error = found - expected;
            if (error > bound || -error > bound) {
                wrong++;
                break;
            }
        }
        break;
    }
    free(w);
}

static bagualu_device *device;
static uint64_t compute;

static void submit(kind kind, unsigned char byte, bagualu_memory from, bagualu_memory to) {
    work *w = malloc(sizeof *w);
    if (w == NULL) abort();
    *w = (work){kind, byte, from, to};
    check(bagualu_device_launch(device, run, w, compute));
}

static const bagualu_memory NOTHING = {0, 0};

static unsigned char seed(uint32_t unit, size_t layer) {
    return (unsigned char)(unit * 31 + layer * 7 + 1);
}

/* ---- What the rank is. ---- */

static bagualu_rank *open_rank(uint64_t device_bytes, uint64_t host_bytes) {
    const bagualu_tensor_type tensors[TENSORS] = {
        [INPUT] = {.bytes = {INPUT_BYTES, 0}, .flags = BAGUALU_TENSOR_BLOCK_INPUT},
        [HIDDEN] = {.bytes = {0, ROW}, .flags = BAGUALU_TENSOR_OFFLOAD},
        [OUTPUT] = {.bytes = {0, ROW}, .flags = BAGUALU_TENSOR_OFFLOAD},
        [SCORES] = {.bytes = {0, ROW_SCORE_BYTES}, .quantized = {0, ROW_QUANTIZED}, .flags = BAGUALU_TENSOR_QUANTIZE},
    };
    const bagualu_time quick = {5000, 100000}, slow = {500000, 1000000};
    const bagualu_op_type ops[] = {
        {.reads = 1 << INPUT, .makes = 1 << HIDDEN, .saves = 1 << INPUT, .forward = quick, .backward = quick},
        {.reads = 1 << HIDDEN, .makes = 1 << OUTPUT, .saves = 1 << HIDDEN, .forward = quick, .backward = quick},
        {.reads = 1 << OUTPUT, .makes = 1 << SCORES, .saves = 1 << OUTPUT, .forward = slow, .backward = quick},
        {.reads = 1 << SCORES, .saves = 1 << SCORES, .forward = quick, .backward = quick},
    };
    const bagualu_layer_type type = {.tensors = tensors, .tensor_count = TENSORS, .ops = ops, .op_count = 4,
                                     .moe = 1 << HIDDEN | 1 << OUTPUT | 1 << SCORES, .experts = 15, .routed = 1};
    const uint16_t types[LAYERS] = {0};
    const bagualu_chunk chunk = {types, LAYERS};
    const bagualu_knee copies = {4096, 8000000000}, casts = {4096, 8000000000};
    const bagualu_stage stage = {.struct_size = sizeof stage, .types = &type, .type_count = 1, .chunks = &chunk,
                                 .chunk_count = 1, .rooflines = {copies, copies, casts, casts},
                                 .device_bytes = device_bytes, .host_bytes = host_bytes, .balanced_rows = BALANCED};
    const bagualu_pipeline pipeline = {
        .struct_size = sizeof pipeline, .ranks = RANKS, .rank = 0, .micro_batches = MICRO_BATCHES};
    const bagualu_rank_config config = {.struct_size = sizeof config, .device = device, .compute = compute};
    bagualu_rank *rank = NULL;
    bagualu_status status = bagualu_rank_from_stage(&stage, &pipeline, &config, &rank);
    uint64_t needed = 0, available = 0;
    if (status == BAGUALU_STATUS_INFEASIBLE && bagualu_last_shortage(&needed, &available)) {
        fprintf(stderr, "pipeline: no plan fits: %llu bytes are needed, %llu there\n", (unsigned long long)needed,
                (unsigned long long)available);
        exit(3);
    }
    check(status);
    return rank;
}

/* ---- One iteration. ---- */

static uint64_t state = 88172645463325252u;

/* Rows as a router draws them: mostly near the balanced number, one in eight times far above. */
static uint32_t draw(uint32_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint32_t rows = 1 + (uint32_t)(state % (2 * BALANCED));
    if (state >> 32 & 7) rows = BALANCED / 2 + rows / 2;
    return rows < most ? rows : most;
}

static void save_scores(bagualu_rank *rank, bagualu_memory memory, uint32_t rows) {
    const uint64_t sizes[] = {rows, ROW_SCORES};
    const bagualu_cast cast = {.struct_size = sizeof cast, .dtype = BAGUALU_DTYPE_F32, .dimensions = 2,
                               .sizes = sizes, .format = BAGUALU_FP8_E4M3};
    check(bagualu_rank_save(rank, SCORES, memory, &cast));
}

static void forward(bagualu_rank *rank, uint32_t unit, uint32_t most_rows, uint32_t row_threshold) {
    check(bagualu_rank_begin_forward(rank, unit));
    for (size_t layer = 0; layer < LAYERS; layer++) {
        check(bagualu_rank_to_gate(rank));
        bagualu_memory memory[TENSORS];
        check(bagualu_rank_allocate(rank, INPUT_BYTES, &memory[INPUT]));
        submit(FILL, seed(unit, layer), NOTHING, memory[INPUT]);

        /* The router: here the group has one rank, and no more rows than its dispatch takes whole. */
        bagualu_gate gate = {.struct_size = sizeof gate, .rows = draw(most_rows)};
        check(bagualu_group_decide(&gate.rows, 1, row_threshold, most_rows, &gate.whole_moe, &gate.dispatch_chunks));
        bagualu_decision decision = {.struct_size = sizeof decision};
        check(bagualu_rank_gate(rank, &gate, &decision));

        check(bagualu_rank_allocate(rank, (uint64_t)gate.rows * ROW, &memory[HIDDEN]));
        check(bagualu_rank_allocate(rank, (uint64_t)gate.rows * ROW, &memory[OUTPUT]));
        check(bagualu_rank_allocate(rank, (uint64_t)gate.rows * ROW_SCORE_BYTES, &memory[SCORES]));
        submit(ADD_ONE, 0, memory[INPUT], memory[HIDDEN]);
        submit(ADD_ONE, 0, memory[HIDDEN], memory[OUTPUT]);
        submit(SCORE, 0, memory[OUTPUT], memory[SCORES]);
        for (size_t tensor = INPUT; tensor < SCORES; tensor++)
            check(bagualu_rank_save(rank, tensor, memory[tensor], NULL));
        save_scores(rank, memory[SCORES], gate.rows);
        check(bagualu_rank_layer_done(rank));
    }
    check(bagualu_rank_end_forward(rank, NULL));
}

/* An operator runs again: op n makes tensor n + 1 of tensor n. */
static uint32_t again(void *user, const bagualu_again *op) {
    (void)user;
    submit(op->op + 1 == SCORES ? SCORE : ADD_ONE, 0, op->tensors[op->op], op->tensors[op->op + 1]);
    return BAGUALU_STATUS_OK;
}

static void backward(bagualu_rank *rank, uint32_t unit) {
    check(bagualu_rank_begin_backward(rank, unit));
    for (size_t layer = LAYERS; layer-- > 0;) {
        check(bagualu_rank_recover(rank, layer, again, NULL));
        unsigned char byte = seed(unit, layer);
        for (size_t tensor = INPUT; tensor < TENSORS; tensor++) {
            bagualu_memory memory;
            check(bagualu_rank_tensor(rank, layer, tensor, &memory));
            if (tensor == SCORES) submit(VERIFY_SCORES, byte + 2, memory, NOTHING);
            else submit(VERIFY, (unsigned char)(byte + tensor), memory, NOTHING);
        }
        check(bagualu_rank_layer_undone(rank, layer));
    }
    check(bagualu_rank_end_backward(rank));
}

int main(int argc, char **argv) {
    uint64_t device_bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 2200) * 1000;
    uint64_t host_bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1000) * 1000;
    const bagualu_device_config host = {
        .struct_size = sizeof host, .kind = BAGUALU_DEVICE_HOST, .host_device_bytes = device_bytes};
    check(bagualu_device_open(&host, &device));
    check(bagualu_device_create_stream(device, BAGUALU_STREAM_COMPUTE, &compute));
    bagualu_rank *rank = open_rank(device_bytes, host_bytes);
    bagualu_provision provision = {.struct_size = sizeof provision};
    check(bagualu_rank_provision(rank, &provision));
    bagualu_event events[2 * MICRO_BATCHES];
    size_t count = 0;
    const bagualu_pipeline pipeline = {
        .struct_size = sizeof pipeline, .ranks = RANKS, .rank = 0, .micro_batches = MICRO_BATCHES};
    check(bagualu_pipeline_events(&pipeline, events, 2 * MICRO_BATCHES, &count));

    printf("%llu bytes of device memory, %llu of host memory; at most %u rows\n", (unsigned long long)device_bytes,
           (unsigned long long)host_bytes, provision.dispatch_threshold);
    bagualu_rank_counts before = {.struct_size = sizeof before}, now = {.struct_size = sizeof now};
    for (int iteration = 0; iteration < ITERATIONS; iteration++) {
        for (size_t at = 0; at < count; at++) {
            if (events[at].backward) backward(rank, events[at].unit);
            else forward(rank, events[at].unit, provision.dispatch_threshold, provision.row_threshold);
        }
        bagualu_controller_state state = {.struct_size = sizeof state};
        check(bagualu_rank_read(rank, &state));
        check(bagualu_rank_end_iteration(rank));
        check(bagualu_rank_count(rank, &now));
        printf("iteration %d: %llu tensors offloaded, %llu recomputed, %llu quantised, %llu waits, at most %llu bytes\n",
               iteration, (unsigned long long)(now.offloaded - before.offloaded),
               (unsigned long long)(now.recomputed - before.recomputed),
               (unsigned long long)(now.quantized - before.quantized), (unsigned long long)(now.waits - before.waits),
               (unsigned long long)state.peak_bytes);
        before = now;
    }
    check(bagualu_device_synchronize(device, compute));
    printf("%llu tensors checked, %llu wrong; at most %llu bytes of host memory in use\n", verified, wrong,
           (unsigned long long)now.pinned_high_water);
    check(bagualu_rank_free(rank));
    check(bagualu_device_destroy_stream(device, compute));
    check(bagualu_device_free(device));
    return wrong == 0 ? 0 : 1;
}
