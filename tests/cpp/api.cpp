/* bagualu.hpp: errors are exceptions, objects move and free themselves, what a hook throws comes out. */
#include <bagualu.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <type_traits>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " #condition "\n";                             \
            std::exit(1);                                                                                 \
        }                                                                                                 \
    } while (false)

namespace {

template <class Call> bagualu_status thrown(Call call) {
    try {
        call();
    } catch (const bagualu::Error &error) {
        CHECK(std::strlen(error.what()) > 0);
        return error.status();
    }
    return BAGUALU_STATUS_OK;
}

static_assert(!std::is_copy_constructible_v<bagualu::Controller> && !std::is_copy_assignable_v<bagualu::Rank>);
static_assert(std::is_nothrow_move_constructible_v<bagualu::Controller>);
static_assert(std::is_nothrow_move_assignable_v<bagualu::Stream>);
static_assert(std::is_base_of_v<std::runtime_error, bagualu::Error>);

const std::vector<bagualu_event> EVENTS = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};

void errors() {
    try {
        bagualu::Budget budget(19, BAGUALU_SHARE_EVEN, EVENTS, {10, 10});
        CHECK(false);
    } catch (const bagualu::Error &error) {
        CHECK(error.status() == BAGUALU_STATUS_INFEASIBLE);
        CHECK(std::string(error.name()) == "BAGUALU_STATUS_INFEASIBLE");
        CHECK(error.shortage() == std::make_pair(std::uint64_t{20}, std::uint64_t{19}));
        CHECK(std::string(error.what()).find("20 bytes") != std::string::npos);
    }
    bagualu::ModelOptions options;
    options.preset = "gpt-9";
    CHECK(thrown([&] { bagualu::Model model(options); }) == BAGUALU_STATUS_READ);
    options.preset.clear();
    CHECK(thrown([&] { bagualu::Model model(options); }) == BAGUALU_STATUS_INVALID_VALUE);
    options.path = "/no/such/file";
    CHECK(thrown([&] { bagualu::Model model(options); }) == BAGUALU_STATUS_FILE);
    options.path = "\xff\xfe";
    CHECK(thrown([&] { bagualu::Model model(options); }) == BAGUALU_STATUS_NOT_UTF8);
}

void moves() {
    bagualu::Budget first(100, BAGUALU_SHARE_EVEN, EVENTS, {10, 10});
    bagualu_budget *const handle = first.get();
    bagualu::Budget second(std::move(first));
    CHECK(second.get() == handle && first.get() == nullptr);
    CHECK(thrown([&] { first.forward(); }) == BAGUALU_STATUS_NULL_POINTER);
    bagualu::Budget third(50, BAGUALU_SHARE_EVEN, EVENTS, {1, 1});
    bagualu_budget *const old = third.get();
    third = std::move(second);
    CHECK(third.get() == handle && third.forward().free == 100);
    /* What was assigned over is freed. */
    CHECK(bagualu_budget_restart(old) == BAGUALU_STATUS_FREED_HANDLE);
}

void planning() {
    bagualu::ModelOptions options;
    options.preset = "mixtral-8x7b";
    options.device = "h100-80g";
    const bagualu::Model model(options);
    const auto info = model.info();
    CHECK(info.ranks >= 1 && model.rank(0).device_bytes > 0);
    for (std::size_t type = 0; type < info.types; ++type) {
        const auto kind = model.type(type);
        for (std::size_t tensor = 0; tensor < kind.tensors; ++tensor) CHECK(!model.tensor(type, tensor).second.empty());
        for (std::size_t op = 0; op < kind.ops; ++op) CHECK(!model.op(type, op).second.empty());
    }
    bagualu::Controller controller(model, 0);
    const auto events = controller.events();
    CHECK(events.size() == 2ULL * info.micro_batches * info.chunks);
    CHECK(controller.forward(events[0].unit).quota > 0);
    const auto layers = controller.layers(events[0].unit);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        CHECK(controller.to_gate() == 0);
        const auto decision = controller.gate(layer, info.balanced_rows);
        CHECK(bagualu::strategy(decision.plan, 63) == BAGUALU_STRATEGY_KEEP);
        CHECK(controller.may_start() == 0);
        const auto leaving = controller.layer_done();
        controller.copied_out(events[0].unit, leaving);
    }
    controller.forward_done();
    CHECK(!controller.correct());
    CHECK(controller.decided(events[0].unit, 0).held_bytes == controller.state().held_bytes || layers.size() > 1);
    controller.abandon();

    bagualu::Selector selector;
    const bagualu_tensor tensor = {100, 20, 20, 0, 0, 0, BAGUALU_TENSOR_OFFLOAD, 0};
    const bagualu_op op = {0, 0, 1, 5, BAGUALU_GROUP_NONE, 0};
    const auto [plans, selection] = selector.select({{&tensor, 1, &op, 1}}, 0);
    CHECK(plans.size() == 1 && plans[0].offload == 1 && selection.added_ns == 40 && selection.optimal == 1);

    bagualu::Scheduler scheduler(BAGUALU_SCHEDULER_LIST);
    const bagualu_chain_op operators[] = {{7, 0, 0, BAGUALU_RESOURCE_COMPUTE, 0}};
    auto chains = bagualu::sized<bagualu_chains>();
    chains.ops[BAGUALU_CHAIN_FORWARD] = operators;
    chains.counts[BAGUALU_CHAIN_FORWARD] = 1;
    CHECK(scheduler.schedule(chains).second.makespan_ns == 7);
    CHECK((bagualu::group_rows({1, 2, 3, 4}, 2, 2) == std::vector<std::uint32_t>{4, 6}));
}

void executing() {
    const auto device = bagualu::Device::host(1 << 20);
    CHECK(device.info().total_bytes == 1 << 20);
    const bagualu::Stream compute(device);
    const bagualu::Event event(device);
    CHECK(event.is_done());
    {
        const bagualu::DeviceMemory memory(device, 1 << 19);
        CHECK(thrown([&] { bagualu::DeviceMemory more(device, 1 << 20); }) == BAGUALU_STATUS_OUT_OF_MEMORY);
        CHECK(device.info().free_bytes == 1 << 19);
    }
    CHECK(device.info().free_bytes == 1 << 20);
    event.record(compute);
    event.hold_back(compute);
    event.wait();

    auto config = bagualu::sized<bagualu_engine_config>();
    config.pool_bytes = 1 << 16;
    config.units = 1;
    bagualu::Engine engine(device, config);
    const bagualu::DeviceMemory memory(device, 4096), back(device, 4096);
    std::memset(reinterpret_cast<void *>(static_cast<std::uintptr_t>(memory.get().address)), 42, 4096);
    const auto ticket = engine.offload({0, 0, 3}, memory.get(), compute.get());
    engine.block_until_released(4096);
    const auto copied = engine.copied_out();
    CHECK(copied && copied->first.tensor == 3 && copied->second == 4096 && !engine.copied_out());
    engine.announce(0);
    CHECK(engine.due()->second == 4096);
    engine.reload(ticket, back.get());
    engine.wait(ticket, compute.get());
    CHECK(thrown([&] { engine.wait(ticket, compute.get()); }) == BAGUALU_STATUS_TICKET_SPENT);
    device.synchronize(compute.get());
    CHECK(*reinterpret_cast<unsigned char *>(static_cast<std::uintptr_t>(back.get().address)) == 42);
    engine.drain();
    CHECK(engine.state().taken_bytes == 0);
}

/* FP32 ones through pinned memory, cast and cast back on a stream. */
void casting() {
    const auto device = bagualu::Device::host(1 << 20);
    const bagualu::Stream made(device);
    const auto compute = bagualu::Stream::adopt(device, device.raw_stream(made.get()));
    const std::uint64_t sizes[] = {4, 128};
    auto cast = bagualu::sized<bagualu_cast>();
    cast.dtype = BAGUALU_DTYPE_F32;
    cast.dimensions = 2;
    cast.sizes = sizes;
    auto measured = bagualu::sized<bagualu_cast_sizes>();
    bagualu::check(bagualu_cast_measure(&cast, &measured));
    const bagualu::PinnedMemory ones(device, 2048), back(device, 2048);
    const auto floats = [](const bagualu::PinnedMemory &memory) {
        return reinterpret_cast<float *>(static_cast<std::uintptr_t>(memory.get().address));
    };
    std::fill_n(floats(ones), 512, 1.0f);
    std::fill_n(floats(back), 512, 0.0f);
    const bagualu::DeviceMemory wide(device, 2048), again(device, 2048), values(device, measured.value_bytes),
        scales(device, 4 * measured.scales);
    device.copy_in(ones.get(), wide.get(), compute.get());
    device.quantize(cast, wide.get(), values.get(), scales.get(), compute.get());
    device.dequantize(cast, values.get(), scales.get(), again.get(), compute.get());
    device.copy_out(again.get(), back.get(), compute.get());
    device.synchronize(compute.get());
    CHECK(std::equal(floats(ones), floats(ones) + 512, floats(back)));
    CHECK(thrown([&] { device.copy_in(ones.get(), values.get(), compute.get()); }) != BAGUALU_STATUS_OK);
}

/* Two ranks agree; then one has another fingerprint and both are told. */
void agreeing() {
    constexpr std::uint64_t second = 1'000'000'000;
    auto ranks = bagualu::Collective::threads(2);
    const auto run = [&ranks](std::size_t rank, bagualu_status &last) {
        std::vector<std::uint64_t> profile = {rank, 7};
        std::uint32_t row_threshold = 10 + static_cast<std::uint32_t>(rank), dispatch_threshold = 20;
        ranks[rank].merge_profile(profile, 60 * second);
        CHECK(profile[0] == 1 && profile[1] == 7);
        ranks[rank].agree_thresholds(row_threshold, dispatch_threshold, 60 * second);
        CHECK(row_threshold == 10 && dispatch_threshold == 20);
        ranks[rank].agree(5, 60 * second);
        last = thrown([&] { ranks[rank].agree(rank, 60 * second); });
    };
    bagualu_status first = BAGUALU_STATUS_OK, other = BAGUALU_STATUS_OK;
    std::thread thread([&] { run(1, other); });
    run(0, first);
    thread.join();
    CHECK(first == BAGUALU_STATUS_DISAGREEMENT && other == BAGUALU_STATUS_DISAGREEMENT);
}

/* A rank whose only tensor is made again; the hook throws. */
void hooks() {
    const auto device = bagualu::Device::host(4096);
    const bagualu::Stream compute(device);
    bagualu_tensor_type tensors[2] = {};
    tensors[0].bytes.fixed = 256;
    tensors[0].flags = BAGUALU_TENSOR_BLOCK_INPUT;
    tensors[1].bytes.per_row = 256;
    bagualu_op_type ops[2] = {};
    ops[0].reads = 1;
    ops[0].makes = 2;
    ops[1].reads = ops[1].saves = 2;
    bagualu_layer_type type{};
    type.tensors = tensors;
    type.tensor_count = 2;
    type.ops = ops;
    type.op_count = 2;
    type.moe = 2;
    type.routed = 1;
    const std::uint16_t types[] = {0, 0, 0};
    const bagualu_chunk chunk = {types, 3};
    auto stage = bagualu::sized<bagualu_stage>();
    stage.types = &type;
    stage.type_count = 1;
    stage.chunks = &chunk;
    stage.chunk_count = 1;
    stage.device_bytes = 3072;
    stage.balanced_rows = 4;
    auto pipeline = bagualu::sized<bagualu_pipeline>();
    pipeline.ranks = pipeline.micro_batches = 1;
    auto config = bagualu::sized<bagualu_rank_config>();
    config.device = device.get();
    config.compute = compute.get();
    bagualu::Rank rank(stage, pipeline, config);
    for (const bool throws : {true, false}) {
        rank.begin_forward(0);
        for (std::size_t layer = 0; layer < 3; ++layer) {
            rank.to_gate();
            auto gate = bagualu::sized<bagualu_gate>();
            gate.rows = 4;
            rank.gate(gate);
            const bagualu_memory input = rank.allocate(256), made = rank.allocate(1024);
            rank.save(0, input);
            rank.save(1, made);
            rank.remember(0, 77, {1, 2, 3});
            rank.layer_done();
        }
        rank.end_forward();
        rank.begin_backward(0);
        bool reached = false;
        for (std::size_t layer = 3; layer-- > 0;) {
            try {
                rank.recover(layer, [&](const bagualu_again &again) {
                    CHECK(again.payload == 77 && again.rng_bytes == 3 && again.rng[2] == 3 && again.rows == 4);
                    CHECK(again.there == 3 && again.tensors[1].bytes == 1024);
                    /* The rank is in a call. */
                    CHECK(thrown([&] { rank.end_backward(); }) == BAGUALU_STATUS_BUSY);
                    reached = true;
                    if (throws) throw std::logic_error("thrown by the hook");
                });
            } catch (const std::logic_error &error) {
                CHECK(std::string(error.what()) == "thrown by the hook");
                break;
            }
            rank.layer_undone(layer);
        }
        CHECK(reached);
        if (throws) {
            rank.abandon();
        } else {
            rank.end_backward();
            rank.end_iteration();
        }
    }
    device.synchronize(compute.get());
}

} // namespace

int main() {
    CHECK(bagualu::version() == "0.1.0");
    errors();
    moves();
    planning();
    executing();
    casting();
    agreeing();
    hooks();
    std::cout << "api: ok\n";
}
