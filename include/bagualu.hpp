/*
 * libbagualu for C++17: the C API with objects that free themselves and errors that are exceptions.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Header-only, over bagualu.h: units, structs and threads are as described there. Objects can be moved and not
 * copied; one that was moved from holds nothing, and calls on it throw. Every failure throws bagualu::Error. Plain
 * structs are the C ones; sized<T>() makes one with its struct_size set.
 */
#ifndef BAGUALU_HPP
#define BAGUALU_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bagualu.h"

namespace bagualu {

/* Why a call failed. */
class Error : public std::runtime_error {
public:
    explicit Error(bagualu_status status)
        : std::runtime_error(std::string(bagualu_last_message(nullptr))), status_(status) {
        has_shortage_ = bagualu_last_shortage(&needed_, &available_) != 0;
    }

    bagualu_status status() const noexcept { return status_; }

    /* BAGUALU_STATUS_… */
    const char *name() const noexcept { return bagualu_status_name(status_); }

    /* Bytes needed and available, where that is why. */
    std::optional<std::pair<std::uint64_t, std::uint64_t>> shortage() const {
        if (!has_shortage_) return std::nullopt;
        return std::make_pair(needed_, available_);
    }

private:
    bagualu_status status_;
    bool has_shortage_ = false;
    std::uint64_t needed_ = 0;
    std::uint64_t available_ = 0;
};

/* Throws unless the call went well. */
inline void check(bagualu_status status) {
    if (status != BAGUALU_STATUS_OK) throw Error(status);
}

/* A C struct, all zeros but for its struct_size. */
template <class Struct> Struct sized() {
    Struct value{};
    value.struct_size = sizeof(Struct);
    return value;
}

namespace detail {

/* Owns a handle. */
template <class Opaque, bagualu_status (*Free)(Opaque *)> class Owner {
public:
    Owner() noexcept = default;
    explicit Owner(Opaque *handle) noexcept : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owner &operator=(Owner &&other) noexcept {
        if (this != &other) {
            Free(handle_);
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() { Free(handle_); }

    Opaque *get() const noexcept { return handle_; }

private:
    Opaque *handle_ = nullptr;
};

inline std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> all;
    all.reserve(texts.size());
    for (const std::string &text : texts) all.push_back(text.c_str());
    return all;
}

inline const char *or_null(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

} // namespace detail

inline std::string version() { return bagualu_version(); }

/* What a model is read from; as bagualu_model_config. Give one of text, path and preset, or flags alone. */
struct ModelOptions {
    std::string text;
    std::string path;
    std::string preset;
    std::string format;
    std::vector<std::string> arguments;
    std::vector<std::string> variables;
    std::vector<std::string> flags;
    std::uint64_t gpus = 0;
    std::string device;
    std::string device_path;
    std::uint64_t memory_bytes = 0;
    std::uint64_t margin_bytes = 0;
    std::uint64_t host_bytes = 0;
};

/* A model on its ranks. */
class Model {
public:
    explicit Model(const ModelOptions &options) {
        const auto arguments = detail::pointers(options.arguments);
        const auto variables = detail::pointers(options.variables);
        const auto flags = detail::pointers(options.flags);
        auto config = sized<bagualu_model_config>();
        config.text = detail::or_null(options.text);
        config.text_length = options.text.size();
        config.path = detail::or_null(options.path);
        config.preset = detail::or_null(options.preset);
        config.format = detail::or_null(options.format);
        config.arguments = arguments.data();
        config.argument_count = arguments.size();
        config.variables = variables.data();
        config.variable_count = variables.size();
        config.flags = flags.data();
        config.flag_count = flags.size();
        config.gpus = options.gpus;
        config.device = detail::or_null(options.device);
        config.device_path = detail::or_null(options.device_path);
        config.memory_bytes = options.memory_bytes;
        config.margin_bytes = options.margin_bytes;
        config.host_bytes = options.host_bytes;
        bagualu_model *handle = nullptr;
        check(bagualu_model_read(&config, &handle));
        owner_ = Owner(handle);
    }

    bagualu_model_info info() const {
        auto info = sized<bagualu_model_info>();
        check(bagualu_model_describe(get(), &info));
        return info;
    }

    bagualu_rank_info rank(std::size_t rank) const {
        auto info = sized<bagualu_rank_info>();
        check(bagualu_model_rank(get(), rank, &info));
        return info;
    }

    /* info.name is the model's. */
    bagualu_type_info type(std::size_t layer_type) const {
        auto info = sized<bagualu_type_info>();
        check(bagualu_model_type(get(), layer_type, &info));
        return info;
    }

    std::pair<bagualu_tensor_type, std::string> tensor(std::size_t layer_type, std::size_t tensor) const {
        bagualu_tensor_type info{};
        const char *name = nullptr;
        check(bagualu_model_tensor(get(), layer_type, tensor, &info, &name));
        return {info, name};
    }

    std::pair<bagualu_op_type, std::string> op(std::size_t layer_type, std::size_t op) const {
        bagualu_op_type info{};
        const char *name = nullptr;
        check(bagualu_model_op(get(), layer_type, op, &info, &name));
        return {info, name};
    }

    std::vector<std::string> notes() const {
        std::vector<std::string> all;
        const std::uint32_t count = info().notes;
        for (std::uint32_t note = 0; note < count; ++note) {
            const char *text = nullptr;
            check(bagualu_model_note(get(), note, &text));
            all.emplace_back(text);
        }
        return all;
    }

    bagualu_model *get() const noexcept { return owner_.get(); }

private:
    using Owner = detail::Owner<bagualu_model, bagualu_model_free>;
    Owner owner_;
};

/* Algorithm 1. */
class Budget {
public:
    Budget(std::uint64_t capacity, std::uint32_t share, const std::vector<bagualu_event> &events,
           const std::vector<std::uint64_t> &floors) {
        bagualu_budget *handle = nullptr;
        check(bagualu_budget_new(capacity, share, events.data(), events.size(), floors.data(), nullptr,
                                 floors.size(), &handle));
        owner_ = Owner(handle);
    }

    bagualu_allowance forward() const {
        auto allowance = sized<bagualu_allowance>();
        check(bagualu_budget_forward(get(), &allowance));
        return allowance;
    }

    void launch(std::uint64_t held) { check(bagualu_budget_launch(get(), held)); }

    std::uint64_t release() {
        std::uint64_t freed = 0;
        check(bagualu_budget_release(get(), &freed));
        return freed;
    }

    void hold(std::uint32_t unit, std::uint64_t held) { check(bagualu_budget_hold(get(), unit, held)); }

    std::uint64_t headroom(std::uint32_t unit) const {
        std::uint64_t bytes = 0;
        check(bagualu_budget_headroom(get(), unit, &bytes));
        return bytes;
    }

    bagualu_budget_state state() const {
        auto state = sized<bagualu_budget_state>();
        check(bagualu_budget_read(get(), &state));
        return state;
    }

    void restart() { check(bagualu_budget_restart(get())); }

    bagualu_budget *get() const noexcept { return owner_.get(); }

private:
    using Owner = detail::Owner<bagualu_budget, bagualu_budget_free>;
    Owner owner_;
};

/* Algorithm 2. */
class Selector {
public:
    explicit Selector(std::uint32_t method = BAGUALU_SELECTOR_EXACT) : Selector(with(method)) {}

    explicit Selector(const bagualu_selector_config &config) {
        bagualu_selector *handle = nullptr;
        check(bagualu_selector_new(&config, &handle));
        owner_ = Owner(handle);
    }

    /* A plan for each layer, and what they hold and cost. */
    std::pair<std::vector<bagualu_layer_plan>, bagualu_selection>
    select(const std::vector<bagualu_layer> &layers, std::uint64_t bytes, std::uint64_t host_bytes = UINT64_MAX,
           std::uint32_t allow_collectives = 0) {
        auto limits = sized<bagualu_selection_limits>();
        limits.bytes = bytes;
        limits.host_bytes = host_bytes;
        limits.allow_collectives = allow_collectives;
        std::vector<bagualu_layer_plan> plans(layers.size());
        auto selection = sized<bagualu_selection>();
        check(bagualu_selector_select(get(), layers.data(), layers.size(), &limits, plans.data(), &selection));
        return {std::move(plans), selection};
    }

    bagualu_selector *get() const noexcept { return owner_.get(); }

private:
    static bagualu_selector_config with(std::uint32_t method) {
        auto config = sized<bagualu_selector_config>();
        config.method = method;
        return config;
    }

    using Owner = detail::Owner<bagualu_selector, bagualu_selector_free>;
    Owner owner_;
};

/* The order of forward, backward, offload and recovery operators. */
class Scheduler {
public:
    explicit Scheduler(std::uint32_t method = BAGUALU_SCHEDULER_EXACT) : Scheduler(with(method)) {}

    explicit Scheduler(const bagualu_scheduler_config &config) {
        bagualu_scheduler *handle = nullptr;
        check(bagualu_scheduler_new(&config, &handle));
        owner_ = Owner(handle);
    }

    /* An order of the chains' operators, and what it is worth. */
    std::pair<std::vector<bagualu_step>, bagualu_solution> schedule(const bagualu_chains &chains) {
        std::size_t count = 0;
        for (std::size_t chain = 0; chain < 4; ++chain) count += chains.counts[chain];
        std::vector<bagualu_step> order(count);
        auto solution = sized<bagualu_solution>();
        check(bagualu_scheduler_schedule(get(), &chains, order.data(), order.size(), &solution));
        return {std::move(order), solution};
    }

    bagualu_scheduler *get() const noexcept { return owner_.get(); }

private:
    static bagualu_scheduler_config with(std::uint32_t method) {
        auto config = sized<bagualu_scheduler_config>();
        config.method = method;
        return config;
    }

    using Owner = detail::Owner<bagualu_scheduler, bagualu_scheduler_free>;
    Owner owner_;
};

/* The run-time workflow of one rank; the order of calls is that of bagualu_controller. */
class Controller {
public:
    Controller(const Model &model, std::uint32_t rank, const bagualu_controller_config *config = nullptr) {
        bagualu_controller *handle = nullptr;
        check(bagualu_controller_from_model(model.get(), rank, config, &handle));
        owner_ = Owner(handle);
    }

    Controller(const bagualu_stage &stage, const bagualu_pipeline &pipeline,
               const bagualu_controller_config *config = nullptr) {
        bagualu_controller *handle = nullptr;
        check(bagualu_controller_from_stage(&stage, &pipeline, config, &handle));
        owner_ = Owner(handle);
    }

    bagualu_provision provision() const {
        auto provision = sized<bagualu_provision>();
        check(bagualu_controller_provision(get(), &provision));
        return provision;
    }

    std::vector<bagualu_event> events() const {
        return filled<bagualu_event>([this](bagualu_event *to, std::size_t capacity, std::size_t *count) {
            return bagualu_controller_events(get(), to, capacity, count);
        });
    }

    /* The type of each layer of a unit. */
    std::vector<std::uint16_t> layers(std::uint32_t unit) const {
        return filled<std::uint16_t>([this, unit](std::uint16_t *to, std::size_t capacity, std::size_t *count) {
            return bagualu_controller_layers(get(), unit, to, capacity, count);
        });
    }

    bagualu_controller_state state() const {
        auto state = sized<bagualu_controller_state>();
        check(bagualu_controller_read(get(), &state));
        return state;
    }

    bagualu_allowance forward(std::uint32_t unit) {
        auto allowance = sized<bagualu_allowance>();
        check(bagualu_controller_forward(get(), unit, &allowance));
        return allowance;
    }

    /* 0, or the bytes to wait for. */
    std::uint64_t to_gate() {
        std::uint64_t bytes = 0;
        check(bagualu_controller_to_gate(get(), &bytes));
        return bytes;
    }

    bagualu_decision gate(std::size_t layer, std::uint32_t rows, bool whole_moe = false,
                          std::uint32_t dispatch_chunks = 1) {
        auto gate = sized<bagualu_gate>();
        gate.rows = rows;
        gate.whole_moe = whole_moe;
        gate.dispatch_chunks = dispatch_chunks;
        return this->gate(layer, gate);
    }

    bagualu_decision gate(std::size_t layer, const bagualu_gate &gate) {
        auto decision = sized<bagualu_decision>();
        check(bagualu_controller_gate(get(), layer, &gate, &decision));
        return decision;
    }

    /* 0, or the bytes to wait for. */
    std::uint64_t may_start() {
        std::uint64_t bytes = 0;
        check(bagualu_controller_may_start(get(), &bytes));
        return bytes;
    }

    /* Bytes that are copied out now. */
    std::uint64_t layer_done() {
        std::uint64_t bytes = 0;
        check(bagualu_controller_layer_done(get(), &bytes));
        return bytes;
    }

    void forward_done(std::optional<std::uint64_t> measured = std::nullopt) {
        check(bagualu_controller_forward_done(get(), measured ? &*measured : nullptr));
    }

    void copied_out(std::uint32_t unit, std::uint64_t bytes) {
        check(bagualu_controller_copied_out(get(), unit, bytes));
    }

    bool recover_early(std::uint32_t unit) {
        std::uint32_t granted = 0;
        check(bagualu_controller_recover_early(get(), unit, &granted));
        return granted != 0;
    }

    void backward(std::uint32_t unit) { check(bagualu_controller_backward(get(), unit)); }

    /* 0, or the bytes to wait for. */
    std::uint64_t may_recover(std::size_t layer) {
        std::uint64_t bytes = 0;
        check(bagualu_controller_may_recover(get(), layer, &bytes));
        return bytes;
    }

    void recovered() { check(bagualu_controller_recovered(get())); }

    void backward_done() { check(bagualu_controller_backward_done(get())); }

    /* What to offload after all, if anything. */
    std::optional<bagualu_correction> correct() {
        auto correction = sized<bagualu_correction>();
        check(bagualu_controller_correct(get(), &correction));
        if (correction.tensors == 0) return std::nullopt;
        return correction;
    }

    bagualu_decision decided(std::uint32_t unit, std::size_t layer) const {
        auto decision = sized<bagualu_decision>();
        check(bagualu_controller_decided(get(), unit, layer, &decision));
        return decision;
    }

    void restart() { check(bagualu_controller_restart(get())); }

    void abandon() { check(bagualu_controller_abandon(get())); }

    bagualu_controller *get() const noexcept { return owner_.get(); }

private:
    /* What a call writes that says how much there is. */
    template <class Element, class Call> static std::vector<Element> filled(Call call) {
        std::size_t count = 0;
        const bagualu_status status = call(nullptr, 0, &count);
        if (status != BAGUALU_STATUS_BUFFER_TOO_SMALL) check(status);
        std::vector<Element> all(count);
        if (count > 0) check(call(all.data(), all.size(), &count));
        return all;
    }

    using Owner = detail::Owner<bagualu_controller, bagualu_controller_free>;
    Owner owner_;
};

/* A device: its memory, streams, events and copies. Functions may run on any number of threads. */
class Device {
public:
    explicit Device(std::uint32_t kind = BAGUALU_DEVICE_AUTO, std::uint32_t ordinal = 0)
        : Device(with(kind, ordinal)) {}

    explicit Device(const bagualu_device_config &config) {
        bagualu_device *handle = nullptr;
        check(bagualu_device_open(&config, &handle));
        owner_ = Owner(handle);
    }

    /* The host, with so much device memory; 0: what the machine has. */
    static Device host(std::uint64_t device_bytes = 0) {
        auto config = sized<bagualu_device_config>();
        config.kind = BAGUALU_DEVICE_HOST;
        config.host_device_bytes = device_bytes;
        return Device(config);
    }

    bagualu_device_info info() const {
        auto info = sized<bagualu_device_info>();
        check(bagualu_device_describe(get(), &info));
        return info;
    }

    void synchronize(std::uint64_t stream) const { check(bagualu_device_synchronize(get(), stream)); }

    void launch(void (*function)(void *), void *data, std::uint64_t stream) const {
        check(bagualu_device_launch(get(), function, data, stream));
    }

    void copy_out(bagualu_memory from, bagualu_memory to, std::uint64_t stream) const {
        check(bagualu_device_copy_out(get(), from, to, stream));
    }

    void copy_in(bagualu_memory from, bagualu_memory to, std::uint64_t stream) const {
        check(bagualu_device_copy_in(get(), from, to, stream));
    }

    void quantize(const bagualu_cast &cast, bagualu_memory from, bagualu_memory values, bagualu_memory scales,
                  std::uint64_t stream) const {
        check(bagualu_device_quantize(get(), &cast, from, values, scales, stream));
    }

    void dequantize(const bagualu_cast &cast, bagualu_memory values, bagualu_memory scales, bagualu_memory to,
                    std::uint64_t stream) const {
        check(bagualu_device_dequantize(get(), &cast, values, scales, to, stream));
    }

    /* What a framework calls the stream: cudaStream_t, hipStream_t. */
    void *raw_stream(std::uint64_t stream) const {
        void *raw = nullptr;
        check(bagualu_device_raw_stream(get(), stream, &raw));
        return raw;
    }

    bagualu_device *get() const noexcept { return owner_.get(); }

private:
    static bagualu_device_config with(std::uint32_t kind, std::uint32_t ordinal) {
        auto config = sized<bagualu_device_config>();
        config.kind = kind;
        config.ordinal = ordinal;
        return config;
    }

    using Owner = detail::Owner<bagualu_device, bagualu_device_free>;
    Owner owner_;
};

namespace detail {

/* Owns something of a device that must live longer. */
template <class Value, bagualu_status (*End)(const bagualu_device *, Value)> class OfDevice {
public:
    OfDevice(const Device &device, Value value) noexcept : device_(device.get()), value_(value), there_(true) {}
    OfDevice(OfDevice &&other) noexcept
        : device_(other.device_), value_(other.value_), there_(std::exchange(other.there_, false)) {}
    OfDevice &operator=(OfDevice &&other) noexcept {
        if (this != &other) {
            end();
            device_ = other.device_;
            value_ = other.value_;
            there_ = std::exchange(other.there_, false);
        }
        return *this;
    }
    OfDevice(const OfDevice &) = delete;
    OfDevice &operator=(const OfDevice &) = delete;
    ~OfDevice() { end(); }

    Value get() const noexcept { return value_; }

    /* The caller ends it from now on. */
    Value give_up() noexcept {
        there_ = false;
        return value_;
    }

private:
    void end() noexcept {
        if (std::exchange(there_, false)) End(device_, value_);
    }

    const bagualu_device *device_;
    Value value_;
    bool there_;
};

} // namespace detail

/* A stream; ended after its work. Its device lives longer. */
class Stream : public detail::OfDevice<std::uint64_t, bagualu_device_destroy_stream> {
public:
    explicit Stream(const Device &device, std::uint32_t use_for = BAGUALU_STREAM_COMPUTE)
        : OfDevice(device, made(device, use_for)) {}

    /* A framework's stream, which outlives this and is not ended by it. */
    static Stream adopt(const Device &device, void *raw) {
        std::uint64_t stream = 0;
        check(bagualu_device_adopt_stream(device.get(), raw, &stream));
        return Stream(device, Adopted{stream});
    }

private:
    struct Adopted {
        std::uint64_t stream;
    };

    Stream(const Device &device, Adopted adopted) : OfDevice(device, adopted.stream) {}

    static std::uint64_t made(const Device &device, std::uint32_t use_for) {
        std::uint64_t stream = 0;
        check(bagualu_device_create_stream(device.get(), use_for, &stream));
        return stream;
    }
};

/* An event. Its device lives longer. */
class Event : public detail::OfDevice<std::uint64_t, bagualu_device_destroy_event> {
public:
    explicit Event(const Device &device) : OfDevice(device, made(device)), device_(device.get()) {}

    void record(const Stream &stream) const { check(bagualu_device_record(device_, get(), stream.get())); }

    /* Work submitted to `stream` from now on starts after what this marks now. */
    void hold_back(const Stream &stream) const { check(bagualu_device_stream_wait(device_, stream.get(), get())); }

    bool is_done() const {
        std::uint32_t done = 0;
        check(bagualu_device_is_done(device_, get(), &done));
        return done != 0;
    }

    void wait() const { check(bagualu_device_wait(device_, get())); }

private:
    static std::uint64_t made(const Device &device) {
        std::uint64_t event = 0;
        check(bagualu_device_create_event(device.get(), &event));
        return event;
    }

    const bagualu_device *device_;
};

/* Device memory of a program without an allocator of its own. Ended when no work uses it; its device lives longer. */
class DeviceMemory : public detail::OfDevice<bagualu_memory, bagualu_device_release> {
public:
    DeviceMemory(const Device &device, std::uint64_t bytes) : OfDevice(device, made(device, bytes)) {}

private:
    static bagualu_memory made(const Device &device, std::uint64_t bytes) {
        bagualu_memory memory{};
        check(bagualu_device_allocate(device.get(), bytes, &memory));
        return memory;
    }
};

/* Host memory that copies reach directly. Ended when no work uses it; its device lives longer. */
class PinnedMemory : public detail::OfDevice<bagualu_memory, bagualu_device_release_pinned> {
public:
    PinnedMemory(const Device &device, std::uint64_t bytes) : OfDevice(device, made(device, bytes)) {}

private:
    static bagualu_memory made(const Device &device, std::uint64_t bytes) {
        bagualu_memory memory{};
        check(bagualu_device_allocate_pinned(device.get(), bytes, &memory));
        return memory;
    }
};

/* One rank of a group that agrees before it starts. One call at a time, each on all ranks. */
class Collective {
public:
    explicit Collective(const bagualu_collective_config &config) {
        bagualu_collective *handle = nullptr;
        check(bagualu_collective_join(&config, &handle));
        owner_ = Owner(handle);
    }

    /* The ranks of a group over threads of this process. */
    static std::vector<Collective> threads(std::size_t size) {
        std::vector<bagualu_collective *> handles(size);
        std::vector<Collective> ranks;
        ranks.reserve(size);
        check(bagualu_collective_threads(size, handles.data()));
        for (bagualu_collective *handle : handles) ranks.push_back(Collective(Owner(handle)));
        return ranks;
    }

    /* The id that every rank of a group over devices joins with. */
    static bagualu_unique_id unique_id(std::uint32_t kind, const std::string &library = "") {
        bagualu_unique_id id{};
        check(bagualu_collective_unique_id(kind, detail::or_null(library), &id));
        return id;
    }

    void merge_profile(std::vector<std::uint64_t> &profile, std::uint64_t timeout_ns) {
        check(bagualu_collective_merge_profile(get(), profile.data(), profile.size(), timeout_ns));
    }

    void agree_thresholds(std::uint32_t &row_threshold, std::uint32_t &dispatch_threshold, std::uint64_t timeout_ns) {
        check(bagualu_collective_agree_thresholds(get(), &row_threshold, &dispatch_threshold, timeout_ns));
    }

    void agree(std::uint64_t fingerprint, std::uint64_t timeout_ns) {
        check(bagualu_collective_agree(get(), fingerprint, timeout_ns));
    }

    bagualu_collective *get() const noexcept { return owner_.get(); }

private:
    using Owner = detail::Owner<bagualu_collective, bagualu_collective_free>;

    explicit Collective(Owner owner) noexcept : owner_(std::move(owner)) {}

    Owner owner_;
};

/* Offload and reload of tensors beside the operators; the order of calls is that of bagualu_engine. */
class Engine {
public:
    Engine(const Device &device, const bagualu_engine_config &config) {
        bagualu_engine *handle = nullptr;
        check(bagualu_engine_new(device.get(), &config, &handle));
        owner_ = Owner(handle);
    }

    /* Pins memory now, so that no offload has to. */
    void warm(std::uint64_t bytes) { check(bagualu_engine_warm(get(), bytes)); }

    /* A ticket. `from` lives until copied_out has reported it. */
    std::uint64_t offload(bagualu_key key, bagualu_memory from, std::uint64_t producer) {
        std::uint64_t ticket = 0;
        check(bagualu_engine_offload(get(), key, from, producer, &ticket));
        return ticket;
    }

    /* The next tensor whose device memory is free, and its bytes. */
    std::optional<std::pair<bagualu_key, std::uint64_t>> copied_out() {
        return next([this](bagualu_key *key, std::uint64_t *bytes, std::uint32_t *found) {
            return bagualu_engine_copied_out(get(), key, bytes, found);
        });
    }

    void block_until_released(std::uint64_t bytes) { check(bagualu_engine_block_until_released(get(), bytes)); }

    void announce(std::uint32_t unit) { check(bagualu_engine_announce(get(), unit)); }

    /* What to reload next, and its bytes. */
    std::optional<std::pair<bagualu_key, std::uint64_t>> due() {
        return next([this](bagualu_key *key, std::uint64_t *bytes, std::uint32_t *found) {
            return bagualu_engine_due(get(), key, bytes, found);
        });
    }

    void reload(std::uint64_t ticket, bagualu_memory into) {
        check(bagualu_engine_reload(get(), ticket, into, nullptr));
    }

    void reload(std::uint64_t ticket, bagualu_memory into, std::uint64_t after) {
        check(bagualu_engine_reload(get(), ticket, into, &after));
    }

    void wait(std::uint64_t ticket, std::uint64_t consumer) { check(bagualu_engine_wait(get(), ticket, consumer)); }

    void cancel(std::uint64_t ticket) { check(bagualu_engine_cancel(get(), ticket)); }

    void drain() { check(bagualu_engine_drain(get())); }

    bagualu_engine_state state() const {
        auto state = sized<bagualu_engine_state>();
        check(bagualu_engine_read(get(), &state));
        return state;
    }

    bagualu_engine *get() const noexcept { return owner_.get(); }

private:
    template <class Call> static std::optional<std::pair<bagualu_key, std::uint64_t>> next(Call call) {
        bagualu_key key{};
        std::uint64_t bytes = 0;
        std::uint32_t found = 0;
        check(call(&key, &bytes, &found));
        if (found == 0) return std::nullopt;
        return std::make_pair(key, bytes);
    }

    using Owner = detail::Owner<bagualu_engine, bagualu_engine_free>;
    Owner owner_;
};

/* A pipeline rank that runs its plan on real buffers; the order of calls is that of bagualu_rank. */
class Rank {
public:
    Rank(const Model &model, std::uint32_t rank, const bagualu_rank_config &config) {
        bagualu_rank *handle = nullptr;
        check(bagualu_rank_from_model(model.get(), rank, &config, &handle));
        owner_ = Owner(handle);
    }

    Rank(const bagualu_stage &stage, const bagualu_pipeline &pipeline, const bagualu_rank_config &config) {
        bagualu_rank *handle = nullptr;
        check(bagualu_rank_from_stage(&stage, &pipeline, &config, &handle));
        owner_ = Owner(handle);
    }

    bagualu_provision provision() const {
        auto provision = sized<bagualu_provision>();
        check(bagualu_rank_provision(get(), &provision));
        return provision;
    }

    void begin_forward(std::uint32_t unit) { check(bagualu_rank_begin_forward(get(), unit)); }

    void to_gate() { check(bagualu_rank_to_gate(get())); }

    bagualu_decision gate(const bagualu_gate &gate) {
        auto decision = sized<bagualu_decision>();
        check(bagualu_rank_gate(get(), &gate, &decision));
        return decision;
    }

    bagualu_memory allocate(std::uint64_t bytes) {
        bagualu_memory memory{};
        check(bagualu_rank_allocate(get(), bytes, &memory));
        return memory;
    }

    void give_back(bagualu_memory memory) { check(bagualu_rank_give_back(get(), memory)); }

    void save(std::size_t tensor, bagualu_memory memory, const bagualu_cast *cast = nullptr) {
        check(bagualu_rank_save(get(), tensor, memory, cast));
    }

    void remember(std::size_t op, std::uint64_t payload, const std::vector<std::uint8_t> &rng = {}) {
        check(bagualu_rank_remember(get(), op, payload, rng.data(), rng.size()));
    }

    void layer_done() { check(bagualu_rank_layer_done(get())); }

    void end_forward(std::optional<std::uint64_t> measured = std::nullopt) {
        check(bagualu_rank_end_forward(get(), measured ? &*measured : nullptr));
    }

    void begin_backward(std::uint32_t unit) { check(bagualu_rank_begin_backward(get(), unit)); }

    /* Calls hook(const bagualu_again &) for each operator that runs again. What it throws is thrown from here. */
    template <class Hook> void recover(std::size_t layer, Hook &&hook) {
        Caught<Hook> caught{hook, nullptr};
        caught.end(bagualu_rank_recover(get(), layer, Caught<Hook>::call, &caught));
    }

    void recover(std::size_t layer) { check(bagualu_rank_recover(get(), layer, nullptr, nullptr)); }

    std::uint32_t parts(std::size_t layer) const {
        std::uint32_t parts = 0;
        check(bagualu_rank_parts(get(), layer, &parts));
        return parts;
    }

    template <class Hook> void recover_part(std::size_t layer, std::uint32_t part, Hook &&hook) {
        Caught<Hook> caught{hook, nullptr};
        caught.end(bagualu_rank_recover_part(get(), layer, part, Caught<Hook>::call, &caught));
    }

    bagualu_memory tensor(std::size_t layer, std::size_t tensor) const {
        bagualu_memory memory{};
        check(bagualu_rank_tensor(get(), layer, tensor, &memory));
        return memory;
    }

    void layer_undone(std::size_t layer) { check(bagualu_rank_layer_undone(get(), layer)); }

    void end_backward() { check(bagualu_rank_end_backward(get())); }

    void end_iteration() { check(bagualu_rank_end_iteration(get())); }

    void abandon() { check(bagualu_rank_abandon(get())); }

    bagualu_rank_counts counts() {
        auto counts = sized<bagualu_rank_counts>();
        check(bagualu_rank_count(get(), &counts));
        return counts;
    }

    bagualu_controller_state state() const {
        auto state = sized<bagualu_controller_state>();
        check(bagualu_rank_read(get(), &state));
        return state;
    }

    bagualu_rank *get() const noexcept { return owner_.get(); }

private:
    /* Carries an exception past C. */
    template <class Hook> struct Caught {
        Hook &hook;
        std::exception_ptr exception;

        static std::uint32_t call(void *user, const bagualu_again *again) {
            auto &self = *static_cast<Caught *>(user);
            try {
                self.hook(*again);
                return BAGUALU_STATUS_OK;
            } catch (...) {
                self.exception = std::current_exception();
                return BAGUALU_STATUS_HOOK;
            }
        }

        void end(bagualu_status status) {
            if (exception) std::rethrow_exception(exception);
            check(status);
        }
    };

    using Owner = detail::Owner<bagualu_rank, bagualu_rank_free>;
    Owner owner_;
};

/* The events of a pipeline's schedule, in order. */
inline std::vector<bagualu_event> events(const bagualu_pipeline &pipeline) {
    std::size_t count = 0;
    const bagualu_status status = bagualu_pipeline_events(&pipeline, nullptr, 0, &count);
    if (status != BAGUALU_STATUS_BUFFER_TOO_SMALL) check(status);
    std::vector<bagualu_event> all(count);
    check(bagualu_pipeline_events(&pipeline, all.data(), all.size(), &count));
    return all;
}

/* The strategy of a tensor in a plan, a bagualu_strategy. */
inline std::uint32_t strategy(const bagualu_layer_plan &plan, std::size_t tensor) {
    std::uint32_t found = 0;
    check(bagualu_layer_plan_strategy(&plan, tensor, &found));
    return found;
}

/* The rows of each rank, from the count matrix [sources, experts]. */
inline std::vector<std::uint32_t> group_rows(const std::vector<std::uint32_t> &counts, std::size_t experts,
                                             std::size_t ranks) {
    std::vector<std::uint32_t> rows(ranks);
    check(bagualu_group_rows(counts.data(), counts.size(), experts, rows.data(), rows.size()));
    return rows;
}

} // namespace bagualu

#endif // BAGUALU_HPP
