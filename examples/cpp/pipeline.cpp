/*
 * One pipeline rank on the host device, in C++: random rows, real buffers, a plan for each micro-batch.
 *
 *     pipeline [DEVICE_KB [HOST_KB]]
 *
 * Every layer saves its input, which is kept, a hidden tensor and an output, which may be copied to the host or made again,
 * and scores, which may be held in FP8. Their contents are checked before each backward. The same in C, with more
 * words, is examples/c/pipeline.c.
 */
#include <bagualu.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <random>

namespace {

constexpr std::size_t LAYERS = 4;
constexpr std::uint32_t RANKS = 4, MICRO_BATCHES = 8, BALANCED = 128;
constexpr int ITERATIONS = 6;
enum : std::size_t { INPUT, HIDDEN, OUTPUT, SCORES, TENSORS };
constexpr std::uint64_t ROW = 512, INPUT_BYTES = 64 * ROW, ROW_SCORES = 64, ROW_SCORE_BYTES = ROW_SCORES * 4;

using Bytes = unsigned char;

Bytes *bytes_of(bagualu_memory memory) { return reinterpret_cast<Bytes *>(static_cast<std::uintptr_t>(memory.address)); }

float score(Bytes byte, std::uint64_t index) { return static_cast<float>((byte + index * 13) % 61) - 30.0F; }

Bytes seed(std::uint32_t unit, std::size_t layer) { return static_cast<Bytes>(unit * 31 + layer * 7 + 1); }

/* Operators are functions that the compute stream calls. */
class Operators {
public:
    Operators(const bagualu::Device &device, const bagualu::Stream &stream) : device_(device), stream_(stream) {}

    void fill(bagualu_memory to, Bytes byte) {
        submit([=] { std::memset(bytes_of(to), byte, to.bytes); });
    }

    /* The input has a fixed number of rows: its first byte stands for all. */
    void add_one(bagualu_memory from, bagualu_memory to) {
        submit([=] { if (to.bytes > 0) std::memset(bytes_of(to), bytes_of(from)[0] + 1, to.bytes); });
    }

    void scores(bagualu_memory from, bagualu_memory to) {
        submit([=] {
            for (std::uint64_t i = 0; i < to.bytes / 4; ++i) {
                const float value = score(bytes_of(from)[0], i);
                std::memcpy(bytes_of(to) + 4 * i, &value, 4);
            }
        });
    }

    void verify(bagualu_memory from, Bytes byte) {
        submit([=] {
            bool same = true;
            for (std::uint64_t i = 0; i < from.bytes; ++i) same = same && bytes_of(from)[i] == byte;
            count(same);
        });
    }

    /* Within the precision of FP8. */
    void verify_scores(bagualu_memory from, Bytes byte) {
        submit([=] {
            bool near = true;
            for (std::uint64_t i = 0; i < from.bytes / 4; ++i) {
                float found = 0;
                std::memcpy(&found, bytes_of(from) + 4 * i, 4);
                near = near && std::fabs(found - score(byte, i)) <= std::fabs(score(byte, i)) / 16;
            }
            count(near);
        });
    }

    /* Read when the stream is idle. */
    unsigned long long verified = 0, wrong = 0;

private:
    void count(bool right) {
        ++verified;
        wrong += right ? 0 : 1;
    }

    void submit(std::function<void()> work) {
        auto owned = std::make_unique<std::function<void()>>(std::move(work));
        device_.launch([](void *data) {
            std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()> *>(data));
            (*work)();
        }, owned.get(), stream_.get());
        owned.release();
    }

    const bagualu::Device &device_;
    const bagualu::Stream &stream_;
};

bagualu_pipeline pipeline_of_rank() {
    auto pipeline = bagualu::sized<bagualu_pipeline>();
    pipeline.ranks = RANKS;
    pipeline.micro_batches = MICRO_BATCHES;
    return pipeline;
}

bagualu::Rank make_rank(const bagualu::Device &device, const bagualu::Stream &stream, std::uint64_t device_bytes,
                        std::uint64_t host_bytes) {
    bagualu_tensor_type tensors[TENSORS] = {};
    tensors[INPUT].bytes.fixed = INPUT_BYTES;
    tensors[INPUT].flags = BAGUALU_TENSOR_BLOCK_INPUT;
    tensors[HIDDEN].bytes.per_row = tensors[OUTPUT].bytes.per_row = ROW;
    tensors[HIDDEN].flags = tensors[OUTPUT].flags = BAGUALU_TENSOR_OFFLOAD;
    tensors[SCORES].bytes.per_row = ROW_SCORE_BYTES;
    /* The values, and one scale of four bytes. */
    tensors[SCORES].quantized.per_row = ROW_SCORES + 4;
    tensors[SCORES].flags = BAGUALU_TENSOR_QUANTIZE;
    bagualu_op_type ops[TENSORS] = {};
    for (std::size_t op = 0; op < TENSORS; ++op) {
        ops[op].reads = ops[op].saves = 1ULL << op;
        ops[op].makes = op + 1 < TENSORS ? 2ULL << op : 0;
        ops[op].forward = ops[op].backward = {5000, 100000};
    }
    ops[OUTPUT].forward = {500000, 1000000};
    bagualu_layer_type type{};
    type.tensors = tensors;
    type.tensor_count = TENSORS;
    type.ops = ops;
    type.op_count = TENSORS;
    type.moe = 1ULL << HIDDEN | 1ULL << OUTPUT | 1ULL << SCORES;
    type.experts = 15;
    type.routed = 1;
    const std::uint16_t types[LAYERS] = {};
    const bagualu_chunk chunk = {types, LAYERS};
    auto stage = bagualu::sized<bagualu_stage>();
    stage.types = &type;
    stage.type_count = 1;
    stage.chunks = &chunk;
    stage.chunk_count = 1;
    const bagualu_knee knee = {4096, 8000000000};
    stage.rooflines = {knee, knee, knee, knee};
    stage.device_bytes = device_bytes;
    stage.host_bytes = host_bytes;
    stage.balanced_rows = BALANCED;
    auto config = bagualu::sized<bagualu_rank_config>();
    config.device = device.get();
    config.compute = stream.get();
    return bagualu::Rank(stage, pipeline_of_rank(), config);
}

/* Rows as a router draws them: mostly near the balanced number, one in eight times far above. */
std::uint32_t draw(std::mt19937_64 &random, std::uint32_t most) {
    auto rows = static_cast<std::uint32_t>(1 + random() % (2 * BALANCED));
    if (random() % 8 != 0) rows = BALANCED / 2 + rows / 2;
    return rows < most ? rows : most;
}

void forward(bagualu::Rank &rank, Operators &operators, const bagualu_provision &provision, std::uint32_t unit,
             std::mt19937_64 &random) {
    rank.begin_forward(unit);
    for (std::size_t layer = 0; layer < LAYERS; ++layer) {
        rank.to_gate();
        const bagualu_memory input = rank.allocate(INPUT_BYTES);
        operators.fill(input, seed(unit, layer));
        auto gate = bagualu::sized<bagualu_gate>();
        gate.rows = draw(random, provision.dispatch_threshold);
        bagualu::check(bagualu_group_decide(&gate.rows, 1, provision.row_threshold, provision.dispatch_threshold,
                                            &gate.whole_moe, &gate.dispatch_chunks));
        rank.gate(gate);
        const bagualu_memory hidden = rank.allocate(gate.rows * ROW), output = rank.allocate(gate.rows * ROW);
        const bagualu_memory scores = rank.allocate(gate.rows * ROW_SCORE_BYTES);
        operators.add_one(input, hidden);
        operators.add_one(hidden, output);
        operators.scores(output, scores);
        rank.save(INPUT, input);
        rank.save(HIDDEN, hidden);
        rank.save(OUTPUT, output);
        const std::uint64_t sizes[] = {gate.rows, ROW_SCORES};
        auto cast = bagualu::sized<bagualu_cast>();
        cast.dtype = BAGUALU_DTYPE_F32;
        cast.dimensions = 2;
        cast.sizes = sizes;
        rank.save(SCORES, scores, &cast);
        rank.layer_done();
    }
    rank.end_forward();
}

void backward(bagualu::Rank &rank, Operators &operators, std::uint32_t unit) {
    rank.begin_backward(unit);
    for (std::size_t layer = LAYERS; layer-- > 0;) {
        /* Operator n makes tensor n + 1 of tensor n. */
        rank.recover(layer, [&](const bagualu_again &again) {
            const bagualu_memory from = again.tensors[again.op], to = again.tensors[again.op + 1];
            if (again.op + 1 == SCORES) operators.scores(from, to);
            else operators.add_one(from, to);
        });
        for (std::size_t tensor = INPUT; tensor < SCORES; ++tensor)
            operators.verify(rank.tensor(layer, tensor), static_cast<Bytes>(seed(unit, layer) + tensor));
        operators.verify_scores(rank.tensor(layer, SCORES), static_cast<Bytes>(seed(unit, layer) + 2));
        rank.layer_undone(layer);
    }
    rank.end_backward();
}

int pipeline(std::uint64_t device_bytes, std::uint64_t host_bytes) {
    const auto device = bagualu::Device::host(device_bytes);
    const bagualu::Stream compute(device);
    Operators operators(device, compute);
    auto rank = make_rank(device, compute, device_bytes, host_bytes);
    const auto provision = rank.provision();
    const auto events = bagualu::events(pipeline_of_rank());
    std::mt19937_64 random(7);
    auto before = rank.counts();
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        for (const bagualu_event &event : events) {
            if (event.backward != 0) backward(rank, operators, event.unit);
            else forward(rank, operators, provision, event.unit, random);
        }
        const std::uint64_t peak = rank.state().peak_bytes;
        rank.end_iteration();
        const auto now = rank.counts();
        std::cout << "iteration " << iteration << ": " << now.offloaded - before.offloaded << " tensors offloaded, "
                  << now.recomputed - before.recomputed << " recomputed, " << now.quantized - before.quantized
                  << " quantised, at most " << peak << " of " << device_bytes << " bytes\n";
        before = now;
    }
    device.synchronize(compute.get());
    std::cout << operators.verified << " tensors checked, " << operators.wrong << " wrong\n";
    return operators.wrong == 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return pipeline(1000 * (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2200),
                        1000 * (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1000));
    } catch (const bagualu::Error &error) {
        std::cerr << "pipeline: " << error.name() << ": " << error.what() << '\n';
        return error.status() == BAGUALU_STATUS_INFEASIBLE ? 3 : 1;
    }
}
