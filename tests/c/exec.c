/* The executing half of the C API on the host device: memory, streams, copies, offload, casts. */
#include "check.h"

#define BYTES 4096u

static unsigned char *at(bagualu_memory memory) {
    return (unsigned char *)(uintptr_t)memory.address;
}

static bagualu_device *open_host(uint64_t device_bytes) {
    bagualu_device_config config = {
        .struct_size = sizeof config, .kind = BAGUALU_DEVICE_HOST, .host_device_bytes = device_bytes};
    bagualu_device *device = NULL;
    OK(bagualu_device_open(&config, &device));
    return device;
}

static void add_one(void *data) {
    bagualu_memory *memory = data;
    for (uint64_t byte = 0; byte < memory->bytes; byte++) at(*memory)[byte]++;
}

static void device(void) {
    bagualu_device *device = open_host(8 * BYTES);
    bagualu_device_info info = {.struct_size = sizeof info};
    OK(bagualu_device_describe(device, &info));
    CHECK(info.kind == BAGUALU_DEVICE_HOST && info.total_bytes == 8 * BYTES && info.free_bytes == 8 * BYTES);
    bagualu_memory memory, pinned, none;
    OK(bagualu_device_allocate(device, BYTES, &memory));
    OK(bagualu_device_allocate_pinned(device, BYTES, &pinned));
    EXPECT(BAGUALU_STATUS_OUT_OF_MEMORY, bagualu_device_allocate(device, 8 * BYTES, &none));
    uint64_t needed = 0, available = 0;
    CHECK(bagualu_last_shortage(&needed, &available) == 1 && needed == 8 * BYTES && available == 7 * BYTES);

    uint64_t compute, copies, event;
    OK(bagualu_device_create_stream(device, BAGUALU_STREAM_COMPUTE, &compute));
    OK(bagualu_device_create_stream(device, BAGUALU_STREAM_COPY_OUT, &copies));
    OK(bagualu_device_create_event(device, &event));
    memset(at(memory), 7, BYTES);
    OK(bagualu_device_launch(device, add_one, &memory, compute));
    OK(bagualu_device_record(device, event, compute));
    OK(bagualu_device_stream_wait(device, copies, event));
    OK(bagualu_device_copy_out(device, memory, pinned, copies));
    OK(bagualu_device_synchronize(device, copies));
    for (unsigned byte = 0; byte < BYTES; byte++) CHECK(at(pinned)[byte] == 8);
    uint32_t done = 0;
    OK(bagualu_device_is_done(device, event, &done));
    CHECK(done == 1);
    OK(bagualu_device_wait(device, event));
    memset(at(memory), 0, BYTES);
    OK(bagualu_device_copy_in(device, pinned, memory, compute));
    OK(bagualu_device_synchronize(device, compute));
    CHECK(at(memory)[BYTES - 1] == 8);

    bagualu_memory half = {pinned.address, BYTES / 2};
    EXPECT(BAGUALU_STATUS_MISMATCH, bagualu_device_copy_out(device, memory, half, copies));
    EXPECT(BAGUALU_STATUS_NULL_POINTER, bagualu_device_launch(device, NULL, NULL, compute));
    OK(bagualu_device_destroy_event(device, event));
    EXPECT(BAGUALU_STATUS_NO_SUCH_STREAM, bagualu_device_record(device, event, compute));
    OK(bagualu_device_destroy_stream(device, copies));
    EXPECT(BAGUALU_STATUS_NO_SUCH_STREAM, bagualu_device_synchronize(device, copies));
    EXPECT(BAGUALU_STATUS_NO_SUCH_STREAM, bagualu_device_synchronize(device, UINT64_MAX));
    OK(bagualu_device_release_pinned(device, pinned));
    OK(bagualu_device_release(device, memory));
    EXPECT(BAGUALU_STATUS_NO_SUCH_STREAM, bagualu_device_release(device, memory));
    OK(bagualu_device_destroy_stream(device, compute));
    OK(bagualu_device_free(device));
}

static void engine(void) {
    bagualu_device *device = open_host(0);
    uint64_t compute;
    OK(bagualu_device_create_stream(device, BAGUALU_STREAM_COMPUTE, &compute));
    bagualu_engine_config config = {.struct_size = sizeof config, .pool_bytes = 2 * BYTES, .units = 4};
    bagualu_engine *engine = NULL;
    OK(bagualu_engine_new(device, &config, &engine));
    OK(bagualu_engine_warm(engine, 2 * BYTES));
    bagualu_memory memory[3], back[2];
    uint64_t tickets[3];
    for (uint16_t tensor = 0; tensor < 3; tensor++) {
        OK(bagualu_device_allocate(device, BYTES, &memory[tensor]));
        memset(at(memory[tensor]), 10 + tensor, BYTES);
        bagualu_key key = {.unit = 1, .layer = 0, .tensor = tensor};
        /* The third finds the pool full: an answer, not a failure of what is out. */
        EXPECT(tensor < 2 ? BAGUALU_STATUS_OK : BAGUALU_STATUS_POOL_FULL,
               bagualu_engine_offload(engine, key, memory[tensor], compute, &tickets[tensor]));
    }
    OK(bagualu_engine_block_until_released(engine, 2 * BYTES));
    for (unsigned tensor = 0; tensor < 2; tensor++) {
        bagualu_key key;
        uint64_t bytes = 0;
        uint32_t found = 0;
        OK(bagualu_engine_copied_out(engine, &key, &bytes, &found));
        CHECK(found == 1 && key.unit == 1 && key.tensor == tensor && bytes == BYTES);
        memset(at(memory[tensor]), 0, BYTES);
        OK(bagualu_device_release(device, memory[tensor]));
    }
    EXPECT(BAGUALU_STATUS_NOTHING_LEAVING, bagualu_engine_block_until_released(engine, 1));

    OK(bagualu_engine_announce(engine, 1));
    EXPECT(BAGUALU_STATUS_NO_SUCH_INDEX, bagualu_engine_announce(engine, 4));
    /* What was saved last comes back first. */
    for (unsigned tensor = 2; tensor-- > 0;) {
        bagualu_key key;
        uint64_t bytes = 0;
        uint32_t found = 0;
        do OK(bagualu_engine_due(engine, &key, &bytes, &found)); while (!found);
        CHECK(key.tensor == tensor && bytes == BYTES);
        OK(bagualu_device_allocate(device, BYTES, &back[tensor]));
        OK(bagualu_engine_reload(engine, tickets[tensor], back[tensor], &compute));
        EXPECT(BAGUALU_STATUS_TICKET_STATE, bagualu_engine_reload(engine, tickets[tensor], back[tensor], NULL));
        OK(bagualu_engine_wait(engine, tickets[tensor], compute));
        EXPECT(BAGUALU_STATUS_TICKET_SPENT, bagualu_engine_wait(engine, tickets[tensor], compute));
        EXPECT(BAGUALU_STATUS_TICKET_SPENT, bagualu_engine_cancel(engine, tickets[tensor]));
        OK(bagualu_device_synchronize(device, compute));
        for (unsigned byte = 0; byte < BYTES; byte++) CHECK(at(back[tensor])[byte] == 10 + tensor);
        OK(bagualu_device_release(device, back[tensor]));
    }
    EXPECT(BAGUALU_STATUS_TICKET_SPENT, bagualu_engine_wait(engine, 0, compute));
    OK(bagualu_engine_drain(engine));
    bagualu_engine_state state = {.struct_size = sizeof state};
    OK(bagualu_engine_read(engine, &state));
    CHECK(state.slots == 0 && state.taken_bytes == 0 && state.high_water_bytes == 2 * BYTES);
    OK(bagualu_device_release(device, memory[2]));
    OK(bagualu_device_destroy_stream(device, compute));
    /* The engine keeps the device alive. */
    OK(bagualu_device_free(device));
    OK(bagualu_engine_drain(engine));
    OK(bagualu_engine_free(engine));
    EXPECT(BAGUALU_STATUS_FREED_HANDLE, bagualu_engine_free(engine));
}

static void casts(void) {
    float source[4][32], back[4][32];
    for (unsigned row = 0; row < 4; row++)
        for (unsigned column = 0; column < 32; column++)
            source[row][column] = (float)((int)(row * 31 + column * 7) % 29 - 14) * (float)(row + 1);
    const uint64_t sizes[] = {4, 32};
    bagualu_cast cast = {.struct_size = sizeof cast, .dtype = BAGUALU_DTYPE_F32, .dimensions = 2, .sizes = sizes,
                         .block_rows = 1, .block_columns = 16};
    bagualu_cast_sizes measured = {.struct_size = sizeof measured};
    OK(bagualu_cast_measure(&cast, &measured));
    CHECK(measured.source_bytes == sizeof source && measured.value_bytes == 128 && measured.scales == 8);
    uint8_t values[128];
    float scales[8];
    OK(bagualu_cast_quantize(&cast, (const uint8_t *)source, sizeof source, values, 128, scales, 8));
    OK(bagualu_cast_dequantize(&cast, values, 128, scales, 8, (uint8_t *)back, sizeof back));
    for (unsigned row = 0; row < 4; row++)
        for (unsigned column = 0; column < 32; column++) {
            float error = back[row][column] - source[row][column], bound = source[row][column] / 16;
            if (bound < 0) bound = -bound;
            CHECK(error <= bound && -error <= bound);
        }
    EXPECT(BAGUALU_STATUS_BAD_CAST,
           bagualu_cast_quantize(&cast, (const uint8_t *)source, sizeof source, values, 127, scales, 8));
    const int64_t expanded[] = {0, 1};
    cast.strides = expanded;
    EXPECT(BAGUALU_STATUS_BAD_CAST, bagualu_cast_measure(&cast, &measured));
    cast.strides = NULL;
    cast.dtype = BAGUALU_DTYPE_I64;
    EXPECT(BAGUALU_STATUS_BAD_CAST, bagualu_cast_measure(&cast, &measured));
}

static void absent(void) {
    /* No machine has a device of this number. */
    bagualu_device_config config = {.struct_size = sizeof config, .kind = BAGUALU_DEVICE_CUDA, .ordinal = 4000000};
    bagualu_device *device = NULL;
    bagualu_status status = bagualu_device_open(&config, &device);
    CHECK(status == BAGUALU_STATUS_DEVICE_ABSENT || status == BAGUALU_STATUS_NO_SUCH_DEVICE);
    config.kind = BAGUALU_DEVICE_HIP;
    status = bagualu_device_open(&config, &device);
    CHECK(status == BAGUALU_STATUS_DEVICE_ABSENT || status == BAGUALU_STATUS_NO_SUCH_DEVICE);
    CHECK(device == NULL && bagualu_last_message(NULL)[0] != 0);
}

int main(void) {
    device();
    engine();
    casts();
    absent();
    puts("exec: ok");
    return 0;
}
