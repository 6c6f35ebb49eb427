/*
 * libbagualu: activation memory that adapts per micro-batch while a Mixture-of-Experts model trains.
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Made by `cargo xtask header` from the comments in ffi/src; changes belong there. A tutorial is in docs/c-api.md.
 *
 * Conventions, which hold for every function that does not say otherwise:
 *
 * - Errors. A function that can fail returns a bagualu_status: BAGUALU_STATUS_OK, which is 0, or why it failed. Then
 *   nothing was written to its results, and bagualu_last_message() has a sentence for the user. The library never
 *   prints or unwinds. It ends the process only where the process's own heap is used up, as every Rust program, or
 *   where the calling thread has less than 2 MiB of stack left.
 * - Pointers. Arguments are the object, then what is read, then what is written. A pointer may be NULL only where
 *   that is said; NULL elsewhere is an error, not a crash. Arrays are read and written during the call only. What is
 *   written overlaps nothing else that the call is given, and need not hold values before.
 * - Handles. Pointers to opaque structs are handles: what _new, _read and _from_ functions make, the matching _free
 *   ends, and _free of NULL does nothing. Handles are numbers, not addresses: one that was freed, belongs to another
 *   object or was never made is an error, not a crash.
 * - Structs. Those with a struct_size as first field may grow: set it to sizeof before every call, be they read
 *   or written, and the rest to 0 where nothing is to be said, reserved always. Fields of an older header keep their places. Other
 *   structs never change.
 * - Threads. A function that takes an object as const may run at the same time on several threads; any other needs it
 *   alone, and finds out if it has it not (BAGUALU_STATUS_BUSY). Different objects are independent of each other.
 * - Units are bytes, nanoseconds and rows. Indices count from 0. Texts are UTF-8.
 */


#ifndef BAGUALU_H
#define BAGUALU_H

#include <stddef.h>
#include <stdint.h>

/**
 * Four bits of exponent, up to 448, no infinity.
 */
#define BAGUALU_FP8_E4M3 0

/**
 * Five bits of exponent, up to 57344, with infinities.
 */
#define BAGUALU_FP8_E5M2 1

/**
 * A finite number beyond the format's largest becomes that one.
 */
#define BAGUALU_OVERFLOW_SATURATE 0

/**
 * It becomes what the format has instead: NaN in E4M3, infinity in E5M2.
 */
#define BAGUALU_OVERFLOW_NAN 1

/**
 * CUDA device 0; without one HIP device 0; without either the host.
 */
#define BAGUALU_DEVICE_AUTO 0

/**
 * Threads of this process, ordinary memory.
 */
#define BAGUALU_DEVICE_HOST 1

/**
 * NVIDIA.
 */
#define BAGUALU_DEVICE_CUDA 2

/**
 * AMD and Hygon DCU.
 */
#define BAGUALU_DEVICE_HIP 3

/**
 * The stream runs operators.
 */
#define BAGUALU_STREAM_COMPUTE 0

/**
 * The stream copies to the host.
 */
#define BAGUALU_STREAM_COPY_OUT 1

/**
 * The stream copies from the host.
 */
#define BAGUALU_STREAM_COPY_IN 2

/**
 * Always kept and counted: block inputs, RNG state, the routing's layout.
 */
#define BAGUALU_TENSOR_BLOCK_INPUT 1

/**
 * The tensor may be offloaded.
 */
#define BAGUALU_TENSOR_OFFLOAD 2

/**
 * The tensor may be quantised: never an index, a mask or a parameter.
 */
#define BAGUALU_TENSOR_QUANTIZE 4

/**
 * The tensor is a cast copy of the one that `source` names.
 */
#define BAGUALU_TENSOR_HAS_SOURCE 8

/**
 * Major version of the header: a program built with another one must be built again.
 */
#define BAGUALU_VERSION_MAJOR 0

/**
 * Minor version of the header.
 */
#define BAGUALU_VERSION_MINOR 1

/**
 * Patch version of the header.
 */
#define BAGUALU_VERSION_PATCH 0

/**
 * Shares are equal (`bagualu_budget_new`, `bagualu_controller_config`): the paper's.
 */
#define BAGUALU_SHARE_EVEN 0

/**
 * Shares are in proportion to the expected demand of each unit.
 */
#define BAGUALU_SHARE_PROPORTIONAL 1

/**
 * Nothing is recomputed but what the plan says (`bagualu_provision`, `bagualu_decision`).
 */
#define BAGUALU_RECOMPUTE_LOCAL 0

/**
 * The whole MoE module is recomputed, by decision of the group.
 */
#define BAGUALU_RECOMPUTE_WHOLE_MOE 1

/**
 * Everything is recomputed whose recomputation needs a collective: static.
 */
#define BAGUALU_RECOMPUTE_FULL 2

/**
 * The shortest order, with a proven bound.
 */
#define BAGUALU_SCHEDULER_EXACT 0

/**
 * The paper's dynamic program.
 */
#define BAGUALU_SCHEDULER_PAPER 1

/**
 * Longest remaining work first.
 */
#define BAGUALU_SCHEDULER_LIST 2

/**
 * Chain of the forward operators of one micro-batch.
 */
#define BAGUALU_CHAIN_FORWARD 0

/**
 * Chain of the backward operators of another.
 */
#define BAGUALU_CHAIN_BACKWARD 1

/**
 * Chain of copies to the host.
 */
#define BAGUALU_CHAIN_OFFLOAD 2

/**
 * Chain of reloads, recomputations and casts back.
 */
#define BAGUALU_CHAIN_RECOVER 3

/**
 * The least added time, proven.
 */
#define BAGUALU_SELECTOR_EXACT 0

/**
 * The most bytes for an added nanosecond first.
 */
#define BAGUALU_SELECTOR_RATIO 1

/**
 * The paper's greedy rule.
 */
#define BAGUALU_SELECTOR_PAPER 2

/**
 * What a call came to: 0, or a number from 8200 on, which neither errno nor a bool is. Numbers stay for good; those of
 * a status that is given up are not used again. What it was exactly is in `bagualu_last_message`.
 */
enum bagualu_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Done.
     */
    BAGUALU_STATUS_OK = 0,
    /**
     * A pointer is NULL that must not be.
     */
    BAGUALU_STATUS_NULL_POINTER = 8200,
    /**
     * A handle was never returned by this library.
     */
    BAGUALU_STATUS_INVALID_HANDLE = 8201,
    /**
     * A handle was freed.
     */
    BAGUALU_STATUS_FREED_HANDLE = 8202,
    /**
     * A handle of one object where another's is needed.
     */
    BAGUALU_STATUS_WRONG_HANDLE = 8203,
    /**
     * Another thread is in a call on the same object, or this one is, through a callback.
     */
    BAGUALU_STATUS_BUSY = 8204,
    /**
     * `struct_size` is not that of the struct, or the struct says what this version does not know.
     */
    BAGUALU_STATUS_STRUCT_SIZE = 8205,
    /**
     * A string or path is not UTF-8.
     */
    BAGUALU_STATUS_NOT_UTF8 = 8206,
    /**
     * A count is too large for what can be, or for this build.
     */
    BAGUALU_STATUS_COUNT = 8207,
    /**
     * A buffer is too small for the result.
     */
    BAGUALU_STATUS_BUFFER_TOO_SMALL = 8208,
    /**
     * A value is outside what its field takes.
     */
    BAGUALU_STATUS_INVALID_VALUE = 8209,
    /**
     * A pointer is not aligned as its type is.
     */
    BAGUALU_STATUS_MISALIGNED = 8210,
    /**
     * Sums of bytes or times pass 64 bits.
     */
    BAGUALU_STATUS_OVERFLOW = 8211,
    /**
     * An index names nothing.
     */
    BAGUALU_STATUS_NO_SUCH_INDEX = 8212,
    /**
     * An error in the library itself; the objects of that call can only be freed. Please report it.
     */
    BAGUALU_STATUS_PANIC = 8213,
    /**
     * A launch script, config or list of flags cannot be read.
     */
    BAGUALU_STATUS_READ = 8220,
    /**
     * What was read is no model that can be built.
     */
    BAGUALU_STATUS_MODEL = 8221,
    /**
     * A device is neither a preset nor described by the file given.
     */
    BAGUALU_STATUS_DEVICE_NAME = 8222,
    /**
     * A file cannot be opened or read.
     */
    BAGUALU_STATUS_FILE = 8223,
    /**
     * Nothing fits: `bagualu_last_shortage` says what would have to.
     */
    BAGUALU_STATUS_INFEASIBLE = 8240,
    /**
     * The device would do, the host memory for offloading does not.
     */
    BAGUALU_STATUS_HOST_INFEASIBLE = 8241,
    /**
     * Nothing within the limits was found, nor proven not to exist.
     */
    BAGUALU_STATUS_UNDECIDED = 8242,
    /**
     * The greedy rule ran out of candidates; use the exact one.
     */
    BAGUALU_STATUS_OUT_OF_CANDIDATES = 8243,
    /**
     * A layer's tensors and operators do not go together.
     */
    BAGUALU_STATUS_BAD_LAYER = 8244,
    /**
     * A rank's layers do not go together.
     */
    BAGUALU_STATUS_BAD_STAGE = 8245,
    /**
     * A pipeline or a list of events is no schedule.
     */
    BAGUALU_STATUS_BAD_SCHEDULE = 8246,
    /**
     * An order or a merge is not one of the problem's.
     */
    BAGUALU_STATUS_BAD_ORDER = 8247,
    /**
     * Ranks of a group do not agree.
     */
    BAGUALU_STATUS_DISAGREEMENT = 8248,
    /**
     * The call is not the one that the schedule has next.
     */
    BAGUALU_STATUS_OUT_OF_ORDER = 8260,
    /**
     * An operator cannot start even after every copy-out: something holds more than its limit.
     */
    BAGUALU_STATUS_STARVED = 8261,
    /**
     * More bytes are said to be copied out than there are.
     */
    BAGUALU_STATUS_NOT_PENDING = 8262,
    /**
     * A backward ended before its unit's copies did.
     */
    BAGUALU_STATUS_STILL_LEAVING = 8263,
    /**
     * A unit is not between its forward and its backward.
     */
    BAGUALU_STATUS_NOT_IN_FLIGHT = 8264,
    /**
     * A library that the device needs is not on this machine.
     */
    BAGUALU_STATUS_DEVICE_ABSENT = 8280,
    /**
     * There is no device of this number.
     */
    BAGUALU_STATUS_NO_SUCH_DEVICE = 8281,
    /**
     * Device memory is used up.
     */
    BAGUALU_STATUS_OUT_OF_MEMORY = 8282,
    /**
     * Host memory could not be allocated or pinned.
     */
    BAGUALU_STATUS_OUT_OF_PINNED_MEMORY = 8283,
    /**
     * A stream, event or memory that the device does not have (any more).
     */
    BAGUALU_STATUS_NO_SUCH_STREAM = 8284,
    /**
     * Source and destination do not go together.
     */
    BAGUALU_STATUS_MISMATCH = 8285,
    /**
     * The device cannot do this.
     */
    BAGUALU_STATUS_UNSUPPORTED = 8286,
    /**
     * The device's library reported an error.
     */
    BAGUALU_STATUS_DRIVER = 8287,
    /**
     * Work under way was lost; what it wrote is undefined.
     */
    BAGUALU_STATUS_LOST = 8288,
    /**
     * The engine's host memory is used up: keep the tensor, or offload something else.
     */
    BAGUALU_STATUS_POOL_FULL = 8300,
    /**
     * Every place of the engine for a tensor is taken.
     */
    BAGUALU_STATUS_NO_SLOT = 8301,
    /**
     * A ticket was used up before, or is none of this engine's.
     */
    BAGUALU_STATUS_TICKET_SPENT = 8302,
    /**
     * The call does not fit what was done with the ticket.
     */
    BAGUALU_STATUS_TICKET_STATE = 8303,
    /**
     * No copies are under way that would free the bytes.
     */
    BAGUALU_STATUS_NOTHING_LEAVING = 8304,
    /**
     * A tensor or these buffers cannot be cast.
     */
    BAGUALU_STATUS_BAD_CAST = 8305,
    /**
     * A hook failed.
     */
    BAGUALU_STATUS_HOOK = 8306,
    /**
     * A step must wait for the pass beside it, which only the program can run on.
     */
    BAGUALU_STATUS_WAITS = 8307,
    /**
     * A saved tensor is not there, not as its model says, or was not saved.
     */
    BAGUALU_STATUS_BAD_TENSOR = 8308,
    /**
     * A rank of the group did not come in time.
     */
    BAGUALU_STATUS_TIMED_OUT = 8320,
    /**
     * A rank left the group: it was freed, or its process is gone.
     */
    BAGUALU_STATUS_RANK_LEFT = 8321,
    /**
     * An earlier call of this group failed, here or on another rank; make a new one.
     */
    BAGUALU_STATUS_GROUP_BROKEN = 8322,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bagualu_status bagualu_status;
#else
typedef uint32_t bagualu_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What is done with a saved tensor between forward and backward.
 */
enum bagualu_strategy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Its bytes stay on the device.
     */
    BAGUALU_STRATEGY_KEEP = 0,
    /**
     * Dropped; its producer runs again before backward.
     */
    BAGUALU_STRATEGY_RECOMPUTE = 1,
    /**
     * Copied to the host, and back before backward.
     */
    BAGUALU_STRATEGY_OFFLOAD = 2,
    /**
     * Held in a narrower format, and cast back before backward.
     */
    BAGUALU_STRATEGY_QUANTIZE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bagualu_strategy bagualu_strategy;
#else
typedef uint32_t bagualu_strategy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What an operator occupies while it runs.
 */
enum bagualu_resource
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The device's compute units.
     */
    BAGUALU_RESOURCE_COMPUTE = 0,
    /**
     * The links between devices.
     */
    BAGUALU_RESOURCE_COMMUNICATION = 1,
    /**
     * The device-to-host copy engine.
     */
    BAGUALU_RESOURCE_COPY_OUT = 2,
    /**
     * The host-to-device copy engine.
     */
    BAGUALU_RESOURCE_COPY_IN = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bagualu_resource bagualu_resource;
#else
typedef uint32_t bagualu_resource;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The ranks that meet in a collective. Sets of groups have bit `1 << (group - 1)`.
 */
enum bagualu_group
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * No collective.
     */
    BAGUALU_GROUP_NONE = 0,
    /**
     * Expert parallel.
     */
    BAGUALU_GROUP_EP = 1,
    /**
     * Tensor parallel, sequence parallel included.
     */
    BAGUALU_GROUP_TP = 2,
    /**
     * Context parallel.
     */
    BAGUALU_GROUP_CP = 3,
    /**
     * Pipeline parallel.
     */
    BAGUALU_GROUP_PP = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bagualu_group bagualu_group;
#else
typedef uint32_t bagualu_group;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The element types that tensors come with; only the floating-point ones of 16 and 32 bits are cast.
 */
enum bagualu_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Masks.
     */
    BAGUALU_DTYPE_BOOL = 0,
    /**
     * Unsigned, 8 bits.
     */
    BAGUALU_DTYPE_U8 = 1,
    /**
     * Signed, 8 bits.
     */
    BAGUALU_DTYPE_I8 = 2,
    /**
     * Signed, 16 bits.
     */
    BAGUALU_DTYPE_I16 = 3,
    /**
     * Signed, 32 bits.
     */
    BAGUALU_DTYPE_I32 = 4,
    /**
     * Signed, 64 bits.
     */
    BAGUALU_DTYPE_I64 = 5,
    /**
     * FP8 with four bits of exponent.
     */
    BAGUALU_DTYPE_E4M3 = 6,
    /**
     * FP8 with five bits of exponent.
     */
    BAGUALU_DTYPE_E5M2 = 7,
    /**
     * IEEE binary16.
     */
    BAGUALU_DTYPE_F16 = 8,
    /**
     * bfloat16.
     */
    BAGUALU_DTYPE_BF16 = 9,
    /**
     * IEEE binary32.
     */
    BAGUALU_DTYPE_F32 = 10,
    /**
     * IEEE binary64.
     */
    BAGUALU_DTYPE_F64 = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum bagualu_dtype bagualu_dtype;
#else
typedef uint32_t bagualu_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How memory is divided among the micro-batches of one rank: Algorithm 1 of the paper.
 *
 * Made by `bagualu_budget_new`, freed by `bagualu_budget_free`. Functions that take it as `const` may run at the same
 * time on several threads, all others one at a time.
 */
typedef struct bagualu_budget bagualu_budget;

/**
 * A rank's place in a group. All ranks make the same calls in the same order.
 *
 * Made by `bagualu_collective_join` over devices or by `bagualu_collective_threads` over threads of one process, freed by
 * `bagualu_collective_free`. One call at a time; each blocks until all ranks have come or the time-out is over. After a failure
 * the group is of no further use. Nothing here is needed in an iteration: with the all-to-all dispatcher each
 * rank holds the count matrix already (`bagualu_group_rows`).
 */
typedef struct bagualu_collective bagualu_collective;

/**
 * Decides for one pipeline rank, micro-batch by micro-batch, what to do with each saved tensor.
 *
 * Made by `bagualu_controller_from_model` or `bagualu_controller_from_stage`, freed by `bagualu_controller_free`. It owns all
 * that it needs: model, stage and pipeline may be freed. No call allocates memory but those that make it. Functions
 * that take it as `const` may run at the same time on several threads, all others one at a time.
 *
 * One iteration, in the order of `bagualu_controller_events`; names are those of the functions:
 *
 * forward of a unit   forward; for each layer: to_gate (until it may run), gate, may_start (until it may), layer_done;
 *                     forward_done
 * backward of a unit  backward; for each layer, last first: may_recover (until it may), recovered; backward_done
 * at any time         copied_out, recover_early; after a forward: correct
 */
typedef struct bagualu_controller bagualu_controller;

/**
 * A device: its memory, streams, events and copies.
 *
 * Made by `bagualu_device_open`, freed by `bagualu_device_free`. All functions may run on any number of threads at once.
 * What was made of it (`bagualu_engine`, …) keeps it alive behind its handle. Work submitted to one stream runs in order,
 * streams run beside each other, and submissions return at once.
 */
typedef struct bagualu_device bagualu_device;

/**
 * Copies tensors to pinned host memory and back, on streams of its own.
 *
 * Made by `bagualu_engine_new`, freed by `bagualu_engine_free`, which waits for copies under way. One call at a time.
 * A copy back always waits, on the device, for its own copy out: no order of calls lets a reload read what has not been
 * written. Names below are those of the functions:
 *
 * forward    offload (after the work submitted to the producer's stream) gives a ticket
 * any time   copied_out: this device memory is free now; then bagualu_controller_copied_out
 *            block_until_released: an operator needs bytes that are still leaving
 * backward   announce the unit; while due says something: reload it
 *            wait: the consumer's stream goes on when the tensor is back, and the ticket is used up
 */
typedef struct bagualu_engine bagualu_engine;

/**
 * A model on its ranks: layer types, stages, micro-batches, bytes.
 *
 * Made by `bagualu_model_read`, freed by `bagualu_model_free`. It never changes: any number of threads may use it at once.
 * Texts that it hands out are its own, and go with it.
 */
typedef struct bagualu_model bagualu_model;

/**
 * Runs one pipeline rank under its plan: a controller in step with the saved tensors, which are kept, copied to the host,
 * cast or dropped, and brought back before their backward.
 *
 * Made by `bagualu_rank_from_model` or `bagualu_rank_from_stage`, freed by `bagualu_rank_free`. One call at a time. The program
 * runs its operators on its compute stream. A call that admits an operator blocks until the bytes that it counts on
 * are free: when it returns, the operator may allocate and be submitted. The order, in that of the schedule; names are
 * those of the functions:
 *
 * forward of a unit   begin_forward; for each layer: to_gate, (router), gate, (experts) save of each saved tensor, layer_done;
 *                     end_forward
 * backward of a unit  begin_backward; for each layer, last first: recover, (backward, which reads tensor), layer_undone;
 *                     end_backward
 * after all           end_iteration; after an error: abandon
 */
typedef struct bagualu_rank bagualu_rank;

/**
 * Orders the operators of a scheduling point so that copies and recomputation hide: §V-B of the paper.
 *
 * Made by `bagualu_scheduler_new`, freed by `bagualu_scheduler_free`. One call at a time; threads take one each.
 */
typedef struct bagualu_scheduler bagualu_scheduler;

/**
 * Chooses a strategy for each saved tensor of a micro-batch so that all fit: Algorithm 2 of the paper.
 *
 * Made by `bagualu_selector_new`, freed by `bagualu_selector_free`. One call at a time: it holds the working storage,
 * about 2 MiB; threads take one each.
 */
typedef struct bagualu_selector bagualu_selector;

/**
 * A cast of one tensor to FP8 and back. `sizes` and `strides` count elements; the last dimension is the row. Expanded and
 * otherwise not contiguous views, integers and masks are refused.
 */
typedef struct bagualu_cast {
    /**
     * sizeof(bagualu_cast), set by the caller.
     */
    size_t struct_size;
    /**
     * A `bagualu_dtype`.
     */
    uint32_t dtype;
    /**
     * Dimensions.
     */
    uint32_t dimensions;
    /**
     * The size of each; read during the call.
     */
    const uint64_t *sizes;
    /**
     * The stride of each; NULL: contiguous.
     */
    const int64_t *strides;
    /**
     * `BAGUALU_FP8_…`.
     */
    uint32_t format;
    /**
     * `BAGUALU_OVERFLOW_…`.
     */
    uint32_t overflow;
    /**
     * Rows that share a scale; 0 with `block_columns` 0: what the planner counts, one row.
     */
    uint32_t block_rows;
    /**
     * Elements of a row that share a scale; 0 with `block_rows` 0: what the planner counts; UINT32_MAX: whole rows.
     */
    uint32_t block_columns;
    /**
     * 1: no scales, elements are cast as they are; else 0.
     */
    uint32_t unscaled;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_cast;

/**
 * What a cast reads and writes.
 */
typedef struct bagualu_cast_sizes {
    /**
     * sizeof(bagualu_cast_sizes), set by the caller.
     */
    size_t struct_size;
    /**
     * Bytes of the tensor.
     */
    uint64_t source_bytes;
    /**
     * Bytes of the FP8 values.
     */
    uint64_t value_bytes;
    /**
     * Scales, 4 bytes each.
     */
    uint64_t scales;
} bagualu_cast_sizes;

/**
 * What makes one group of its ranks (`ncclUniqueId`). One rank makes it and brings it to the others.
 */
typedef struct bagualu_unique_id {
    /**
     * The library's bytes.
     */
    uint8_t bytes[128];
} bagualu_unique_id;

/**
 * A rank's place in a group over devices.
 */
typedef struct bagualu_collective_config {
    /**
     * sizeof(bagualu_collective_config), set by the caller.
     */
    size_t struct_size;
    /**
     * `BAGUALU_DEVICE_CUDA` (NCCL) or `BAGUALU_DEVICE_HIP` (RCCL).
     */
    uint32_t kind;
    /**
     * The number of this rank's device.
     */
    uint32_t ordinal;
    /**
     * This rank, from 0.
     */
    size_t rank;
    /**
     * Ranks of the group.
     */
    size_t size;
    /**
     * What `bagualu_collective_unique_id` made on one of them; read during the call.
     */
    const struct bagualu_unique_id *id;
    /**
     * How long the other ranks are waited for, ns.
     */
    uint64_t timeout_ns;
    /**
     * NCCL or RCCL, UTF-8, where its name or its folder is not one that is looked for; else NULL.
     */
    const char *library;
} bagualu_collective_config;

/**
 * Which device to open. All zeros, or NULL in its place: `BAGUALU_DEVICE_AUTO`.
 */
typedef struct bagualu_device_config {
    /**
     * sizeof(bagualu_device_config), set by the caller.
     */
    size_t struct_size;
    /**
     * `BAGUALU_DEVICE_…`.
     */
    uint32_t kind;
    /**
     * The number of a CUDA or HIP device.
     */
    uint32_t ordinal;
    /**
     * Device memory of the host device, bytes; 0: what the machine and the process's limits have.
     */
    uint64_t host_device_bytes;
    /**
     * Folder of the file in which the host device keeps pinned memory, UTF-8; NULL: a file in memory.
     */
    const char *host_tier;
} bagualu_device_config;

/**
 * What a device is and has.
 */
typedef struct bagualu_device_info {
    /**
     * sizeof(bagualu_device_info), set by the caller.
     */
    size_t struct_size;
    /**
     * Device memory that nobody uses, bytes.
     */
    uint64_t free_bytes;
    /**
     * Device memory in all, bytes.
     */
    uint64_t total_bytes;
    /**
     * `BAGUALU_DEVICE_HOST`, `…_CUDA` or `…_HIP`.
     */
    uint32_t kind;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_device_info;

/**
 * Memory by address: of the device where a function says device memory, of the host where it says pinned memory.
 */
typedef struct bagualu_memory {
    /**
     * Where it starts.
     */
    uint64_t address;
    /**
     * Bytes.
     */
    uint64_t bytes;
} bagualu_memory;

/**
 * How an engine is set up.
 */
typedef struct bagualu_engine_config {
    /**
     * sizeof(bagualu_engine_config), set by the caller.
     */
    size_t struct_size;
    /**
     * Pinned memory is never more than this, bytes.
     */
    uint64_t pool_bytes;
    /**
     * Pinned at a time, bytes; 0: 64 MiB, or the cap where that is less.
     */
    uint64_t slab_bytes;
    /**
     * Reloads due at once, bytes; 0: a quarter of the pool.
     */
    uint64_t window_bytes;
    /**
     * Reloads due at once; 0: 64.
     */
    uint32_t window_tensors;
    /**
     * Tensors that may be out at once; 0: 4096. At most 2^20.
     */
    uint32_t slots;
    /**
     * Units of one iteration; at least 1, at most 2^20.
     */
    uint32_t units;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_engine_config;

/**
 * Which saved tensor.
 */
typedef struct bagualu_key {
    /**
     * The unit that saved it.
     */
    uint32_t unit;
    /**
     * The layer of the unit's chunk.
     */
    uint16_t layer;
    /**
     * The tensor of the layer.
     */
    uint16_t tensor;
} bagualu_key;

/**
 * What an engine has under way, bytes.
 */
typedef struct bagualu_engine_state {
    /**
     * sizeof(bagualu_engine_state), set by the caller.
     */
    size_t struct_size;
    /**
     * The most that may be pinned.
     */
    uint64_t pool_bytes;
    /**
     * Pinned so far.
     */
    uint64_t pinned_bytes;
    /**
     * Taken by tensors, rounded up.
     */
    uint64_t taken_bytes;
    /**
     * The most ever taken at once.
     */
    uint64_t high_water_bytes;
    /**
     * Leaving by copies that `bagualu_engine_copied_out` has not reported.
     */
    uint64_t leaving_bytes;
    /**
     * Reloaded and not yet waited for.
     */
    uint64_t returning_bytes;
    /**
     * Places for tensors that are taken.
     */
    uint32_t slots;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_engine_state;

/**
 * A strategy for each saved tensor of a layer, as three sets (bit `1 << index`); a tensor in none of them is kept.
 */
typedef struct bagualu_layer_plan {
    /**
     * Tensors recomputed.
     */
    uint64_t recompute;
    /**
     * Tensors offloaded.
     */
    uint64_t offload;
    /**
     * Tensors quantised.
     */
    uint64_t quantize;
} bagualu_layer_plan;

/**
 * How large problems may be in this build.
 */
typedef struct bagualu_build_limits {
    /**
     * sizeof(bagualu_build_limits), set by the caller.
     */
    size_t struct_size;
    /**
     * Tensors of a layer.
     */
    size_t tensors;
    /**
     * Operators of a layer.
     */
    size_t ops;
    /**
     * Layers of a selection, and of a model chunk of a rank.
     */
    size_t layers;
    /**
     * Ranks of an expert-parallel group.
     */
    size_t ep_ranks;
    /**
     * Operators of one chain of a scheduling problem.
     */
    size_t chain;
} bagualu_build_limits;

/**
 * What a model is read from, and what is given beside it. Exactly one of `text`, `path` and `preset` is not NULL, or none
 * is and `flags` describe the model.
 */
typedef struct bagualu_model_config {
    /**
     * sizeof(bagualu_model_config), set by the caller.
     */
    size_t struct_size;
    /**
     * A launch script, a Hugging Face config.json, a run's YAML or a list of flags.
     */
    const char *text;
    /**
     * Bytes of `text`, which needs no NUL.
     */
    size_t text_length;
    /**
     * The path of such a file, UTF-8.
     */
    const char *path;
    /**
     * The name of a preset (`glm-423b-a30b`, `deepseek-v3`, …).
     */
    const char *preset;
    /**
     * The format, `script`, `hf`, `yaml` or `flags`; NULL: what the content says.
     */
    const char *format;
    /**
     * Arguments of a script.
     */
    const char *const *arguments;
    /**
     * How many.
     */
    size_t argument_count;
    /**
     * Variables of a script's environment, `NAME=VALUE`.
     */
    const char *const *variables;
    /**
     * How many.
     */
    size_t variable_count;
    /**
     * Megatron's flags, one word each, over those of the file.
     */
    const char *const *flags;
    /**
     * How many.
     */
    size_t flag_count;
    /**
     * Devices in all; 0: what the launcher or the preset says.
     */
    uint64_t gpus;
    /**
     * The name of a device preset; NULL: `dcu-64g`, unless there is a `device_path`.
     */
    const char *device;
    /**
     * The path of a device file (TOML), UTF-8.
     */
    const char *device_path;
    /**
     * Memory of the device, bytes; 0: the preset's.
     */
    uint64_t memory_bytes;
    /**
     * Memory set aside for fragmentation and workspace, bytes; 0: the preset's.
     */
    uint64_t margin_bytes;
    /**
     * Pinned host memory for each device, bytes; 0: the preset's.
     */
    uint64_t host_bytes;
} bagualu_model_config;

/**
 * What a model has.
 */
typedef struct bagualu_model_info {
    /**
     * sizeof(bagualu_model_info), set by the caller.
     */
    size_t struct_size;
    /**
     * Pipeline ranks.
     */
    uint32_t ranks;
    /**
     * Model chunks of a rank.
     */
    uint32_t chunks;
    /**
     * Micro-batches of an iteration.
     */
    uint32_t micro_batches;
    /**
     * Tokens of a micro-batch that a rank routes.
     */
    uint32_t tokens;
    /**
     * Rows that a rank's experts receive when all receive equally many, with all that padding may add.
     */
    uint32_t balanced_rows;
    /**
     * The most rows they can receive.
     */
    uint32_t most_rows;
    /**
     * Kinds of layers.
     */
    uint32_t types;
    /**
     * Notes (`bagualu_model_note`).
     */
    uint32_t notes;
} bagualu_model_info;

/**
 * What a pipeline rank has, bytes.
 */
typedef struct bagualu_rank_info {
    /**
     * sizeof(bagualu_rank_info), set by the caller.
     */
    size_t struct_size;
    /**
     * Device bytes for activations: memory less margin and static bytes.
     */
    uint64_t device_bytes;
    /**
     * Host bytes for offloaded tensors.
     */
    uint64_t host_bytes;
    /**
     * Weights, gradients, optimizer state and buffers.
     */
    uint64_t static_bytes;
} bagualu_rank_info;

/**
 * A kind of layer.
 */
typedef struct bagualu_type_info {
    /**
     * sizeof(bagualu_type_info), set by the caller.
     */
    size_t struct_size;
    /**
     * `moe`, `dense`, `embedding`, `output`, …; the model's.
     */
    const char *name;
    /**
     * Tensors.
     */
    uint32_t tensors;
    /**
     * Operators.
     */
    uint32_t ops;
    /**
     * The set of tensors that some operator saves.
     */
    uint64_t saved;
    /**
     * The set of tensors that exist only because of routed rows.
     */
    uint64_t moe;
    /**
     * The set of operators that are the rank's own experts'.
     */
    uint64_t experts;
    /**
     * 1 if its rows come from a router, else 0.
     */
    uint32_t routed;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_type_info;

/**
 * Bytes: fixed + per_row · rows.
 */
typedef struct bagualu_bytes {
    /**
     * Bytes whatever the rows.
     */
    uint64_t fixed;
    /**
     * Bytes for each routed row.
     */
    uint64_t per_row;
} bagualu_bytes;

/**
 * A tensor of a layer type: one storage.
 */
typedef struct bagualu_tensor_type {
    /**
     * Device bytes while it is kept.
     */
    struct bagualu_bytes bytes;
    /**
     * Device bytes while it is quantised, scales included (`BAGUALU_TENSOR_QUANTIZE`).
     */
    struct bagualu_bytes quantized;
    /**
     * `BAGUALU_TENSOR_…`, or-ed.
     */
    uint32_t flags;
    /**
     * Index of the tensor that this is a cast copy of (`BAGUALU_TENSOR_HAS_SOURCE`).
     */
    uint32_t source;
} bagualu_tensor_type;

/**
 * A time: fixed_ns + per_row_ps · rows / 1000, rounded up.
 */
typedef struct bagualu_time {
    /**
     * Nanoseconds whatever the rows.
     */
    uint64_t fixed_ns;
    /**
     * Picoseconds for each routed row.
     */
    uint64_t per_row_ps;
} bagualu_time;

/**
 * An operator of a layer type. Sets of tensors have bit `1 << index`.
 */
typedef struct bagualu_op_type {
    /**
     * Tensors it reads.
     */
    uint64_t reads;
    /**
     * Tensors it makes.
     */
    uint64_t makes;
    /**
     * Tensors it saves for its backward.
     */
    uint64_t saves;
    /**
     * Forward time.
     */
    struct bagualu_time forward;
    /**
     * Backward time.
     */
    struct bagualu_time backward;
    /**
     * Bytes needed only while its forward runs.
     */
    struct bagualu_bytes forward_work;
    /**
     * Bytes needed only while its backward runs.
     */
    struct bagualu_bytes backward_work;
    /**
     * What it occupies, a `bagualu_resource`.
     */
    uint32_t resource;
    /**
     * The group of its collective, a `bagualu_group`.
     */
    uint32_t collective;
} bagualu_op_type;

/**
 * A forward or a backward of one unit: of one (micro-batch, model chunk).
 */
typedef struct bagualu_event {
    /**
     * The unit: chunk · micro-batches + micro-batch.
     */
    uint32_t unit;
    /**
     * 0: its forward, 1: its backward.
     */
    uint32_t backward;
} bagualu_event;

/**
 * What a forward may hold, bytes.
 */
typedef struct bagualu_allowance {
    /**
     * sizeof(bagualu_allowance), set by the caller.
     */
    size_t struct_size;
    /**
     * Capacity less what is held.
     */
    uint64_t free;
    /**
     * The hard bound: whoever stays below it never makes a later micro-batch infeasible.
     */
    uint64_t limit;
    /**
     * The share to plan to; at most the limit.
     */
    uint64_t quota;
} bagualu_allowance;

/**
 * Where a budget stands, bytes.
 */
typedef struct bagualu_budget_state {
    /**
     * sizeof(bagualu_budget_state), set by the caller.
     */
    size_t struct_size;
    /**
     * What may be held.
     */
    uint64_t capacity;
    /**
     * What the units between forward and backward hold.
     */
    uint64_t held;
    /**
     * The most that they held so far.
     */
    uint64_t peak;
    /**
     * By how much they hold too much for some later forward to get its floor.
     */
    uint64_t deficit;
} bagualu_budget_state;

/**
 * What is decided once, before training. Ranks of an expert-parallel group run with the same.
 */
typedef struct bagualu_provision {
    /**
     * sizeof(bagualu_provision), set by the caller.
     */
    size_t struct_size;
    /**
     * What is recomputed whatever the budget: `BAGUALU_RECOMPUTE_…`.
     */
    uint32_t recompute;
    /**
     * R*: a layer whose largest rows over the group exceed it is recomputed whole by all.
     */
    uint32_t row_threshold;
    /**
     * S*: above it the group splits the dispatch.
     */
    uint32_t dispatch_threshold;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Bytes kept free for what operators need while they run, at S*.
     */
    uint64_t work_bytes;
    /**
     * What held tensors may take, bytes.
     */
    uint64_t capacity_bytes;
} bagualu_provision;

/**
 * How a controller plans. All zeros, or NULL in its place, is the default.
 */
typedef struct bagualu_controller_config {
    /**
     * sizeof(bagualu_controller_config), set by the caller.
     */
    size_t struct_size;
    /**
     * How memory is divided: `BAGUALU_SHARE_…`.
     */
    uint32_t share;
    /**
     * 1 if a forward and a backward run together, else 0.
     */
    uint32_t fused;
    /**
     * Partial selections that a plan's search keeps; 0: all there is room for.
     */
    uint32_t node_limit;
    /**
     * A plan's search ends this close to the proven bound, millionths of the added time; 0: 10000.
     */
    uint32_t tolerance_ppm;
    /**
     * Rows are planned in steps of this many; 0: a sixteenth of the balanced rows.
     */
    uint32_t row_granule;
    /**
     * Load up to which no dispatch should be split, thousandths of the balanced rows; 0: 2600.
     */
    uint32_t spike_permille;
    /**
     * Load up to which no whole MoE module should be recomputed, thousandths; 0: 1200.
     */
    uint32_t usual_permille;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Limits are planned for in steps of this many bytes; 0: a 1024th of the capacity.
     */
    uint64_t byte_granule;
    /**
     * Bytes held back for errors of the model.
     */
    uint64_t slack_bytes;
    /**
     * Trade-offs of layers remembered; 0: 64. At least two for each layer type.
     */
    size_t fronts;
    /**
     * Points of each; 0: 1024.
     */
    size_t points;
    /**
     * Plans remembered; 0: 1024.
     */
    size_t plans;
    /**
     * The static decisions that the group has agreed upon; NULL: this rank's own.
     */
    const struct bagualu_provision *provision;
} bagualu_controller_config;

/**
 * A layer type: what one layer runs and saves, as a function of its routed rows.
 */
typedef struct bagualu_layer_type {
    /**
     * Its tensors; read during the call.
     */
    const struct bagualu_tensor_type *tensors;
    /**
     * How many.
     */
    size_t tensor_count;
    /**
     * Its operators in program order; read during the call.
     */
    const struct bagualu_op_type *ops;
    /**
     * How many.
     */
    size_t op_count;
    /**
     * The set of tensors that exist only because of routed rows.
     */
    uint64_t moe;
    /**
     * The set of operators that are the rank's own experts' (bit `1 << index`).
     */
    uint64_t experts;
    /**
     * 1 if its rows come from a router, else 0.
     */
    uint32_t routed;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_layer_type;

/**
 * The layers of a model chunk.
 */
typedef struct bagualu_chunk {
    /**
     * The type of each layer, in program order.
     */
    const uint16_t *types;
    /**
     * How many layers.
     */
    size_t count;
} bagualu_chunk;

/**
 * A roofline: a transfer takes max(size, size_bytes) / bytes_per_s.
 */
typedef struct bagualu_knee {
    /**
     * Bytes below which the launch dominates.
     */
    uint64_t size_bytes;
    /**
     * Bytes per second; 0: the device cannot do this.
     */
    uint64_t bytes_per_s;
} bagualu_knee;

/**
 * The rooflines of a device's copies and casts.
 */
typedef struct bagualu_rooflines {
    /**
     * Device to host.
     */
    struct bagualu_knee copy_out;
    /**
     * Host to device.
     */
    struct bagualu_knee copy_in;
    /**
     * To the narrow format; bytes are the tensor's.
     */
    struct bagualu_knee cast;
    /**
     * Back.
     */
    struct bagualu_knee uncast;
} bagualu_rooflines;

/**
 * A pipeline rank: its layers and its device. Equal on all ranks of an expert-parallel group. All arrays are read during
 * the call and copied.
 */
typedef struct bagualu_stage {
    /**
     * sizeof(bagualu_stage), set by the caller.
     */
    size_t struct_size;
    /**
     * Layer types.
     */
    const struct bagualu_layer_type *types;
    /**
     * How many.
     */
    size_t type_count;
    /**
     * The model chunks: as many as the pipeline has.
     */
    const struct bagualu_chunk *chunks;
    /**
     * How many.
     */
    size_t chunk_count;
    /**
     * The device's copies and casts.
     */
    struct bagualu_rooflines rooflines;
    /**
     * Device bytes for activations: its memory less weights, gradients, optimizer state, buffers and margin.
     */
    uint64_t device_bytes;
    /**
     * Host bytes for offloaded tensors.
     */
    uint64_t host_bytes;
    /**
     * Rows that this rank's experts receive when all receive equally many; at least 1.
     */
    uint32_t balanced_rows;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_stage;

/**
 * A pipeline rank's place and work in one iteration, under Megatron's schedules.
 */
typedef struct bagualu_pipeline {
    /**
     * sizeof(bagualu_pipeline), set by the caller.
     */
    size_t struct_size;
    /**
     * Pipeline ranks.
     */
    uint32_t ranks;
    /**
     * This rank, from 0.
     */
    uint32_t rank;
    /**
     * Micro-batches of an iteration.
     */
    uint32_t micro_batches;
    /**
     * Model chunks of a rank; 0 and 1: no interleaving.
     */
    uint32_t chunks;
    /**
     * Micro-batches that pass one chunk before the next one's turn; 0: as many as ranks.
     */
    uint32_t group_size;
    /**
     * 1 if expert-parallel communication overlaps, else 0.
     */
    uint32_t overlap;
} bagualu_pipeline;

/**
 * Where a controller stands. Bytes.
 */
typedef struct bagualu_controller_state {
    /**
     * sizeof(bagualu_controller_state), set by the caller.
     */
    size_t struct_size;
    /**
     * On the device now, work not included.
     */
    uint64_t current_bytes;
    /**
     * Of these, leaving by copies that have not ended.
     */
    uint64_t pending_bytes;
    /**
     * The most on the device at once so far in this iteration, work included.
     */
    uint64_t peak_bytes;
    /**
     * What the device has for activations.
     */
    uint64_t device_bytes;
    /**
     * What the units between forward and backward hold.
     */
    uint64_t held_bytes;
    /**
     * What they may.
     */
    uint64_t capacity_bytes;
    /**
     * What they hold in the host pool.
     */
    uint64_t host_held_bytes;
    /**
     * What they may there.
     */
    uint64_t host_bytes;
    /**
     * A fingerprint of every decision so far, and of profile and budgets: compare it among ranks that must agree.
     */
    uint64_t fingerprint;
    /**
     * Plans looked up, and found.
     */
    uint64_t plan_hits;
    /**
     * Plans looked up in vain.
     */
    uint64_t plan_misses;
    /**
     * Layers' trade-offs looked up, and found.
     */
    uint64_t front_hits;
    /**
     * Layers' trade-offs looked up in vain.
     */
    uint64_t front_misses;
} bagualu_controller_state;

/**
 * What the gate of a layer says.
 */
typedef struct bagualu_gate {
    /**
     * sizeof(bagualu_gate), set by the caller.
     */
    size_t struct_size;
    /**
     * Rows that this rank's experts receive; 0 for a layer without a router.
     */
    uint32_t rows;
    /**
     * 1 if the group recomputes the whole MoE module, else 0.
     */
    uint32_t whole_moe;
    /**
     * In how many parts the group splits the dispatch; 0 and 1: no split.
     */
    uint32_t dispatch_chunks;
    /**
     * 1 if `granted_bytes` counts, else 0.
     */
    uint32_t has_grant;
    /**
     * Bytes that the micro-batch may hold up to and including this layer, where the group's rule grants them.
     */
    uint64_t granted_bytes;
} bagualu_gate;

/**
 * What is done with one layer of one micro-batch.
 */
typedef struct bagualu_decision {
    /**
     * sizeof(bagualu_decision), set by the caller.
     */
    size_t struct_size;
    /**
     * A strategy for each saved tensor.
     */
    struct bagualu_layer_plan plan;
    /**
     * Device bytes held until backward.
     */
    uint64_t held_bytes;
    /**
     * Bytes copied out after the layer, on the device until then.
     */
    uint64_t offload_bytes;
    /**
     * Bytes needed only while the layer runs.
     */
    uint64_t work_bytes;
    /**
     * What is recomputed whatever the budget: `BAGUALU_RECOMPUTE_…`.
     */
    uint32_t recompute;
    /**
     * In how many parts the group splits the dispatch.
     */
    uint32_t dispatch_chunks;
    /**
     * In how many row chunks this rank runs its experts.
     */
    uint32_t expert_chunks;
    /**
     * 1 if the real rows changed the plan made before the forward, else 0.
     */
    uint32_t replanned;
} bagualu_decision;

/**
 * Kept tensors that are offloaded after all.
 */
typedef struct bagualu_correction {
    /**
     * sizeof(bagualu_correction), set by the caller.
     */
    size_t struct_size;
    /**
     * The set of tensors to copy out now; 0: none.
     */
    uint64_t tensors;
    /**
     * Their bytes: report them by `bagualu_controller_copied_out` when they have left.
     */
    uint64_t bytes;
    /**
     * The unit.
     */
    uint32_t unit;
    /**
     * Its layer.
     */
    uint32_t layer;
} bagualu_correction;

/**
 * How a scheduler searches. All zeros, or NULL in its place, is the default.
 */
typedef struct bagualu_scheduler_config {
    /**
     * sizeof(bagualu_scheduler_config), set by the caller.
     */
    size_t struct_size;
    /**
     * `BAGUALU_SCHEDULER_…`.
     */
    uint32_t method;
    /**
     * States kept, about 120 bytes each; 0: 4096, which is enough for most scheduling points. At most 2^20.
     */
    uint32_t states;
    /**
     * States expanded by the exact search; 0: no limit but their number.
     */
    uint32_t node_limit;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_scheduler_config;

/**
 * An operator of a chain.
 */
typedef struct bagualu_chain_op {
    /**
     * Run time, ns.
     */
    uint64_t ns;
    /**
     * Device bytes it takes when it starts.
     */
    uint64_t alloc_bytes;
    /**
     * Device bytes it gives back when it ends.
     */
    uint64_t free_bytes;
    /**
     * What it occupies, a `bagualu_resource`.
     */
    uint32_t resource;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_chain_op;

/**
 * The four chains of a scheduling point and the memory they share. Arrays are read during the call.
 */
typedef struct bagualu_chains {
    /**
     * sizeof(bagualu_chains), set by the caller.
     */
    size_t struct_size;
    /**
     * The operators of each chain, indexed by `BAGUALU_CHAIN_…`.
     */
    const struct bagualu_chain_op *ops[4];
    /**
     * How many there are.
     */
    size_t counts[4];
    /**
     * Bytes in use before the first operator.
     */
    uint64_t base_bytes;
    /**
     * Bytes never to be passed.
     */
    uint64_t capacity_bytes;
    /**
     * The order of forward and backward operators among each other (`BAGUALU_CHAIN_FORWARD` or `…_BACKWARD`, one for each
     * operator), where the group has fixed it; NULL where it is free.
     */
    const uint32_t *merge;
    /**
     * Elements of `merge`.
     */
    size_t merge_count;
} bagualu_chains;

/**
 * An element of an order: an operator by its chain and its place in it.
 */
typedef struct bagualu_step {
    /**
     * `BAGUALU_CHAIN_…`.
     */
    uint32_t chain;
    /**
     * Place in the chain, from 0.
     */
    uint32_t index;
} bagualu_step;

/**
 * What an order is worth.
 */
typedef struct bagualu_solution {
    /**
     * sizeof(bagualu_solution), set by the caller.
     */
    size_t struct_size;
    /**
     * End of the last operator, ns.
     */
    uint64_t makespan_ns;
    /**
     * No order is shorter, ns: proven.
     */
    uint64_t lower_bound_ns;
    /**
     * The most bytes in use at any time, the base included.
     */
    uint64_t peak_bytes;
    /**
     * 1 if no order is shorter, else 0.
     */
    uint32_t optimal;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_solution;

/**
 * How a selector searches. All zeros, or NULL in its place, is the default.
 */
typedef struct bagualu_selector_config {
    /**
     * sizeof(bagualu_selector_config), set by the caller.
     */
    size_t struct_size;
    /**
     * `BAGUALU_SELECTOR_…`.
     */
    uint32_t method;
    /**
     * Partial selections that the exact search keeps; 0: all it has room for.
     */
    uint32_t node_limit;
    /**
     * The exact search ends this close to the proven bound, millionths of the added time; 0: at the optimum.
     */
    uint32_t tolerance_ppm;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_selector_config;

/**
 * A tensor of a layer at known rows.
 */
typedef struct bagualu_tensor {
    /**
     * Device bytes while it is kept.
     */
    uint64_t bytes;
    /**
     * Copy to the host, ns (`BAGUALU_TENSOR_OFFLOAD`).
     */
    uint64_t copy_out_ns;
    /**
     * Copy back, ns.
     */
    uint64_t copy_in_ns;
    /**
     * Cast to the narrow format, ns (`BAGUALU_TENSOR_QUANTIZE`).
     */
    uint64_t cast_ns;
    /**
     * Cast back, ns.
     */
    uint64_t uncast_ns;
    /**
     * Device bytes while it is quantised, scales included.
     */
    uint64_t quantized_bytes;
    /**
     * `BAGUALU_TENSOR_…`, or-ed.
     */
    uint32_t flags;
    /**
     * Index of the tensor that this is a cast copy of (`BAGUALU_TENSOR_HAS_SOURCE`).
     */
    uint32_t source;
} bagualu_tensor;

/**
 * An operator of a layer at known rows. Sets of tensors have bit `1 << index`.
 */
typedef struct bagualu_op {
    /**
     * Tensors it reads.
     */
    uint64_t reads;
    /**
     * Tensors it makes.
     */
    uint64_t makes;
    /**
     * Tensors it saves for its backward.
     */
    uint64_t saves;
    /**
     * Forward time, ns: what running it again costs.
     */
    uint64_t forward_ns;
    /**
     * The group of its collective, a `bagualu_group`.
     */
    uint32_t collective;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_op;

/**
 * One layer of a selection, at known rows.
 */
typedef struct bagualu_layer {
    /**
     * Its tensors; read during the call.
     */
    const struct bagualu_tensor *tensors;
    /**
     * How many.
     */
    size_t tensor_count;
    /**
     * Its operators; read during the call.
     */
    const struct bagualu_op *ops;
    /**
     * How many.
     */
    size_t op_count;
} bagualu_layer;

/**
 * One selection: what the layers may hold.
 */
typedef struct bagualu_selection_limits {
    /**
     * sizeof(bagualu_selection_limits), set by the caller.
     */
    size_t struct_size;
    /**
     * Device bytes of all layers together.
     */
    uint64_t bytes;
    /**
     * Host bytes of all offloaded tensors; UINT64_MAX for no limit.
     */
    uint64_t host_bytes;
    /**
     * Groups whose collectives a recomputation may run again: bits `1 << (group - 1)` of `bagualu_group`.
     */
    uint32_t allow_collectives;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_selection_limits;

/**
 * What a selection holds and costs.
 */
typedef struct bagualu_selection {
    /**
     * sizeof(bagualu_selection), set by the caller.
     */
    size_t struct_size;
    /**
     * Device bytes held.
     */
    uint64_t bytes;
    /**
     * Host bytes held.
     */
    uint64_t host_bytes;
    /**
     * Time added to forward and backward together, ns.
     */
    uint64_t added_ns;
    /**
     * At most this much of it could be saved, ns: proven.
     */
    uint64_t gap_ns;
    /**
     * 1 if no selection within the limits is better, else 0.
     */
    uint32_t optimal;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_selection;

/**
 * Where a rank's device memory comes from: a framework's caching allocator. Functions are called on the thread that calls
 * the rank, during that call, and do not throw. `stream` is one of the rank's device: `bagualu_device_raw_stream` gives what
 * a framework's allocator takes.
 */
typedef struct bagualu_allocator {
    /**
     * sizeof(bagualu_allocator), set by the caller.
     */
    size_t struct_size;
    /**
     * Handed to both functions.
     */
    void *user;
    /**
     * Returns the address of `bytes` bytes for work submitted to `stream` from now on, or 0 if there are none.
     */
    uint64_t (*allocate)(void *user, uint64_t bytes, uint64_t stream);
    /**
     * Takes memory back at once, though work submitted to `stream` before may still use it.
     */
    void (*release)(void *user, uint64_t address, uint64_t bytes, uint64_t stream);
} bagualu_allocator;

/**
 * What a rank runs on. `compute` and `device` are needed, the rest may be 0.
 */
typedef struct bagualu_rank_config {
    /**
     * sizeof(bagualu_rank_config), set by the caller.
     */
    size_t struct_size;
    /**
     * The device.
     */
    const struct bagualu_device *device;
    /**
     * The program's compute stream on it.
     */
    uint64_t compute;
    /**
     * How it plans; NULL: the default.
     */
    const struct bagualu_controller_config *controller;
    /**
     * Where device memory comes from; NULL: the device.
     */
    const struct bagualu_allocator *allocator;
    /**
     * Pinned memory, bytes; 0: what the plan needs, that is its host bytes and, since each tensor is rounded up, 256 for
     * each that may be out at once. Less is refused.
     */
    uint64_t pool_bytes;
    /**
     * Reloads due at once, bytes; 0: a quarter of the pool.
     */
    uint64_t window_bytes;
    /**
     * Reloads due at once; 0: 64.
     */
    uint32_t window_tensors;
    /**
     * 0.
     */
    uint32_t reserved;
} bagualu_rank_config;

/**
 * What a rank has done since it was made.
 */
typedef struct bagualu_rank_counts {
    /**
     * sizeof(bagualu_rank_counts), set by the caller.
     */
    size_t struct_size;
    /**
     * Layers whose real rows changed the plan.
     */
    uint64_t replanned;
    /**
     * Waits for copies before an operator could start.
     */
    uint64_t waits;
    /**
     * Units brought back before their backward.
     */
    uint64_t early;
    /**
     * Kept tensors that were offloaded after all.
     */
    uint64_t corrections;
    /**
     * Bytes offloaded.
     */
    uint64_t offloaded_bytes;
    /**
     * Tensors offloaded.
     */
    uint64_t offloaded;
    /**
     * Tensors recomputed.
     */
    uint64_t recomputed;
    /**
     * Tensors quantised.
     */
    uint64_t quantized;
    /**
     * The most pinned memory ever taken at once, bytes.
     */
    uint64_t pinned_high_water;
} bagualu_rank_counts;

/**
 * An operator that is to run again.
 */
typedef struct bagualu_again {
    /**
     * The size of what the library filled in.
     */
    size_t struct_size;
    /**
     * The stream to submit it to.
     */
    uint64_t stream;
    /**
     * What `bagualu_rank_remember` left for it; 0 where nothing was.
     */
    uint64_t payload;
    /**
     * State of the random numbers at the forward, during the call; NULL where none was left.
     */
    const uint8_t *rng;
    /**
     * Bytes of `rng`.
     */
    size_t rng_bytes;
    /**
     * Where the layer's saved tensors lie, by their index, during the call: inputs that are back, and outputs to be written.
     */
    const struct bagualu_memory *tensors;
    /**
     * Elements of `tensors`.
     */
    size_t tensor_count;
    /**
     * The set of tensors that are on the device now (bit `1 << index`). The others are not saved, are made again later
     * or not at all, or come by another part of a split dispatch.
     */
    uint64_t there;
    /**
     * The unit.
     */
    uint32_t unit;
    /**
     * Its layer.
     */
    uint32_t layer;
    /**
     * The operator of the layer's type.
     */
    uint32_t op;
    /**
     * The layer's rows.
     */
    uint32_t rows;
    /**
     * Which part of a split dispatch.
     */
    uint32_t part;
    /**
     * How many parts there are; 0 for the whole layer.
     */
    uint32_t parts;
} bagualu_again;

/**
 * Runs an operator again: submits it to `again->stream` and returns `BAGUALU_STATUS_OK`, or any other number to end the
 * recovery. It may call functions of the device, not of the rank.
 */
typedef uint32_t (*bagualu_hook)(void *user, const struct bagualu_again *again);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Writes what a cast reads and writes.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - Structs are NULL or have their `struct_size` set, and arrays as long as the dimensions.
 */
bagualu_status bagualu_cast_measure(const struct bagualu_cast *cast, struct bagualu_cast_sizes *sizes);

/**
 * Casts a tensor to FP8 in this thread: `from` to `values` and `scales`, which are as long as `bagualu_cast_measure` says.
 * Buffers that overlap are refused.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `cast` is NULL or a struct with its `struct_size` set; each buffer is NULL or has its bytes (scales: elements), and
 *   what is written is nobody else's meanwhile. What is written need not hold values before.
 */
bagualu_status bagualu_cast_quantize(const struct bagualu_cast *cast,
                                     const uint8_t *from,
                                     size_t from_bytes,
                                     uint8_t *values,
                                     size_t value_bytes,
                                     float *scales,
                                     size_t scale_count);

/**
 * Casts back in this thread: `values` and `scales` to `to`. Buffers that overlap are refused; where a scale is,
 * `to` may be zeros.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - As for `bagualu_cast_quantize`.
 */
bagualu_status bagualu_cast_dequantize(const struct bagualu_cast *cast,
                                       const uint8_t *values,
                                       size_t value_bytes,
                                       const float *scales,
                                       size_t scale_count,
                                       uint8_t *to,
                                       size_t to_bytes);

/**
 * Makes a group over `size` threads of this process: writes a handle for each rank, in order.
 *
 * Thread-safe. Each of `collectives` is the caller's, to be freed by `bagualu_collective_free`; then the others are told that
 * this rank has left.
 *
 * The caller sees to it that:
 * - `collectives` is NULL or has room for `size`.
 */
bagualu_status bagualu_collective_threads(size_t size,
                                          struct bagualu_collective **collectives);

/**
 * Makes the id of a group over devices; `kind` and `library` as in `bagualu_collective_config`.
 *
 * `BAGUALU_STATUS_DEVICE_ABSENT` if NCCL or RCCL is not on this machine.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `library` is NULL or a string that ends with NUL; `id` is NULL or may be written.
 */
bagualu_status bagualu_collective_unique_id(uint32_t kind, const char *library, struct bagualu_unique_id *id);

/**
 * Joins a group over devices, by NCCL or RCCL. Returns when all ranks have, or after the time-out.
 *
 * Thread-safe. `*collective` is the caller's, to be freed by `bagualu_collective_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set, its id is NULL or may be read, its library NULL or a string that
 *   ends with NUL; `collective` is NULL or may be written.
 */
bagualu_status bagualu_collective_join(const struct bagualu_collective_config *config,
                                       struct bagualu_collective **collective);

/**
 * Leaves a group; NULL is nothing.
 */
bagualu_status bagualu_collective_free(struct bagualu_collective *collective);

/**
 * Makes each of the `count` values of `profile` the largest that any rank has: all plan for the slowest and the largest of
 * them. `count` is the same on all, else every rank fails with `BAGUALU_STATUS_DISAGREEMENT`.
 *
 * The caller sees to it that:
 * - `profile` is NULL or has `count` values, which may be read and written.
 */
bagualu_status bagualu_collective_merge_profile(struct bagualu_collective *collective,
                                                uint64_t *profile,
                                                size_t count,
                                                uint64_t timeout_ns);

/**
 * Makes this rank's thresholds (R* and S* of `bagualu_provision`) the smallest of the group, which serve every rank.
 *
 * The caller sees to it that:
 * - Both are NULL or may be read and written.
 */
bagualu_status bagualu_collective_agree_thresholds(struct bagualu_collective *collective,
                                                   uint32_t *row_threshold,
                                                   uint32_t *dispatch_threshold,
                                                   uint64_t timeout_ns);

/**
 * Refuses to run where any rank's fingerprint (`bagualu_controller_state`) differs: `BAGUALU_STATUS_DISAGREEMENT` on every rank
 * then.
 */
bagualu_status bagualu_collective_agree(struct bagualu_collective *collective,
                                        uint64_t fingerprint,
                                        uint64_t timeout_ns);

/**
 * Opens a device; `config` may be NULL.
 *
 * `BAGUALU_STATUS_DEVICE_ABSENT` if its library is not on this machine, `BAGUALU_STATUS_NO_SUCH_DEVICE` if the device is not.
 *
 * Thread-safe. `*device` is the caller's, to be freed by `bagualu_device_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; `device` is NULL or may be written.
 */
bagualu_status bagualu_device_open(const struct bagualu_device_config *config,
                                   struct bagualu_device **device);

/**
 * Frees a device; NULL is nothing. Engines made of it live on, and the device with them.
 *
 * The last of them to be freed ends the device: that blocks until the work of its streams has ended. On the host device
 * it unmaps all memory that was allocated of it, pinned memory too, given back or not: use none of it after that.
 */
bagualu_status bagualu_device_free(struct bagualu_device *device);

/**
 * Writes what a device is and has.
 *
 * The caller sees to it that:
 * - `info` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_device_describe(const struct bagualu_device *device, struct bagualu_device_info *info);

/**
 * Allocates device memory, for programs without an allocator of their own. On the host device it is ordinary memory at
 * `memory->address`.
 *
 * `*memory` is the caller's, to be given back by `bagualu_device_release`.
 *
 * The caller sees to it that:
 * - `memory` is NULL or may be written.
 */
bagualu_status bagualu_device_allocate(const struct bagualu_device *device,
                                       uint64_t bytes,
                                       struct bagualu_memory *memory);

/**
 * Gives back what `bagualu_device_allocate` wrote.
 *
 * The caller sees to it that:
 * - `memory` is whole, is given back once, and no work that uses it is under way.
 */
bagualu_status bagualu_device_release(const struct bagualu_device *device, struct bagualu_memory memory);

/**
 * Allocates pinned host memory, which copies reach directly and the processor may read and write.
 *
 * `*memory` is the caller's, to be given back by `bagualu_device_release_pinned`.
 *
 * The caller sees to it that:
 * - `memory` is NULL or may be written.
 */
bagualu_status bagualu_device_allocate_pinned(const struct bagualu_device *device,
                                              uint64_t bytes,
                                              struct bagualu_memory *memory);

/**
 * Gives back what `bagualu_device_allocate_pinned` wrote.
 *
 * The caller sees to it that:
 * - `memory` is whole, is given back once, and no work that uses it is under way.
 */
bagualu_status bagualu_device_release_pinned(const struct bagualu_device *device,
                                             struct bagualu_memory memory);

/**
 * Makes a stream; `use_for` is a `BAGUALU_STREAM_…`. `*stream` is the caller's, to be ended by
 * `bagualu_device_destroy_stream`.
 *
 * The caller sees to it that:
 * - `stream` is NULL or may be written.
 */
bagualu_status bagualu_device_create_stream(const struct bagualu_device *device,
                                            uint32_t use_for,
                                            uint64_t *stream);

/**
 * Takes a stream of a framework (`cudaStream_t`, `hipStream_t`; NULL: its default stream); `bagualu_device_destroy_stream`
 * only forgets it.
 *
 * The caller sees to it that:
 * - `raw` is a stream of this device and outlives its use here; `stream` is NULL or may be written.
 */
bagualu_status bagualu_device_adopt_stream(const struct bagualu_device *device,
                                           void *raw,
                                           uint64_t *stream);

/**
 * Writes a stream as the framework knows it (`cudaStream_t`, `hipStream_t`), so that it can submit work to it: what
 * `bagualu_device_adopt_stream` takes. On the host device it is no pointer to anything.
 *
 * `*raw` is the device's, or the framework's where it was adopted: it is not to be ended, and is not used after the stream has.
 *
 * The caller sees to it that:
 * - `raw` is NULL or may be written.
 */
bagualu_status bagualu_device_raw_stream(const struct bagualu_device *device,
                                         uint64_t stream,
                                         void **raw);

/**
 * Ends a stream after its work.
 */
bagualu_status bagualu_device_destroy_stream(const struct bagualu_device *device, uint64_t stream);

/**
 * Blocks until all work submitted to a stream has ended.
 */
bagualu_status bagualu_device_synchronize(const struct bagualu_device *device, uint64_t stream);

/**
 * Makes an event, which is done until it is recorded. `*event` is the caller's, to be ended by
 * `bagualu_device_destroy_event`.
 *
 * The caller sees to it that:
 * - `event` is NULL or may be written.
 */
bagualu_status bagualu_device_create_event(const struct bagualu_device *device, uint64_t *event);

/**
 * Ends an event. Waits that were submitted on it keep their meaning.
 */
bagualu_status bagualu_device_destroy_event(const struct bagualu_device *device, uint64_t event);

/**
 * Marks all work submitted to `stream` so far.
 */
bagualu_status bagualu_device_record(const struct bagualu_device *device, uint64_t event, uint64_t stream);

/**
 * Work submitted to `stream` from now on starts after what `event` marks now.
 */
bagualu_status bagualu_device_stream_wait(const struct bagualu_device *device,
                                          uint64_t stream,
                                          uint64_t event);

/**
 * Whether what `event` marks has ended: `done` receives 1 if so, else 0.
 *
 * The caller sees to it that:
 * - `done` is NULL or may be written.
 */
bagualu_status bagualu_device_is_done(const struct bagualu_device *device, uint64_t event, uint32_t *done);

/**
 * Blocks until what `event` marks has ended.
 */
bagualu_status bagualu_device_wait(const struct bagualu_device *device, uint64_t event);

/**
 * Copies device memory into pinned memory of the same length, as work of `stream`.
 *
 * The caller sees to it that:
 * - Both are memory of this device that lives, and `from` unchanged, until the copy has ended.
 */
bagualu_status bagualu_device_copy_out(const struct bagualu_device *device,
                                       struct bagualu_memory from,
                                       struct bagualu_memory to,
                                       uint64_t stream);

/**
 * Copies pinned memory into device memory of the same length, as work of `stream`.
 *
 * The caller sees to it that:
 * - Both are memory of this device that lives, and `from` unchanged, until the copy has ended.
 */
bagualu_status bagualu_device_copy_in(const struct bagualu_device *device,
                                      struct bagualu_memory from,
                                      struct bagualu_memory to,
                                      uint64_t stream);

/**
 * Calls `function` with `data` as a piece of work of `stream`, on a thread of the device's choice.
 *
 * The caller sees to it that:
 * - `function` may be called with `data`, once, from any thread, until this work has ended; it neither waits for the
 *   device nor throws.
 */
bagualu_status bagualu_device_launch(const struct bagualu_device *device,
                                     void (*function)(void *data),
                                     void *data,
                                     uint64_t stream);

/**
 * Casts device memory to FP8 as work of `stream`: `from` to `values` and `scales`, which have the bytes that
 * `bagualu_cast_measure` says (4 for each scale, aligned to 4). Bits are those of `bagualu_cast_quantize`.
 *
 * `BAGUALU_STATUS_UNSUPPORTED` on a CUDA or HIP device whose compiler library is not on this machine.
 *
 * The caller sees to it that:
 * - `cast` is NULL or a struct with its `struct_size` set. The memory is of this device, does not overlap, and lives until this
 *   work has ended; until then `from` stays as it is and nobody else uses the others.
 */
bagualu_status bagualu_device_quantize(const struct bagualu_device *device,
                                       const struct bagualu_cast *cast,
                                       struct bagualu_memory from,
                                       struct bagualu_memory values,
                                       struct bagualu_memory scales,
                                       uint64_t stream);

/**
 * Casts back as work of `stream`: what `bagualu_device_quantize` has written to `to`.
 *
 * The caller sees to it that:
 * - As for `bagualu_device_quantize`, with `values` and `scales` that stay as they are; a cast of this kind wrote them.
 */
bagualu_status bagualu_device_dequantize(const struct bagualu_device *device,
                                         const struct bagualu_cast *cast,
                                         struct bagualu_memory values,
                                         struct bagualu_memory scales,
                                         struct bagualu_memory to,
                                         uint64_t stream);

/**
 * Makes an engine of a device.
 *
 * Thread-safe. `*engine` is the caller's, to be freed by `bagualu_engine_free`; the device's handle may be freed before.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; `engine` is NULL or may be written.
 */
bagualu_status bagualu_engine_new(const struct bagualu_device *device,
                                  const struct bagualu_engine_config *config,
                                  struct bagualu_engine **engine);

/**
 * Frees an engine, after the copies under way; NULL is nothing.
 */
bagualu_status bagualu_engine_free(struct bagualu_engine *engine);

/**
 * Pins memory now, up to `bytes`, so that no offload has to.
 */
bagualu_status bagualu_engine_warm(struct bagualu_engine *engine, uint64_t bytes);

/**
 * Starts copying device memory out, once all work submitted to `producer` so far has ended. `*ticket`, never 0, is
 * what the tensor is asked for by.
 *
 * `BAGUALU_STATUS_POOL_FULL` if the host memory is used up: keep the tensor or offload something else.
 *
 * The caller sees to it that:
 * - `from` is memory of the engine's device. It lives, unchanged, until `bagualu_engine_copied_out` has reported it,
 *   `bagualu_engine_drain` has succeeded or the engine is freed. `ticket` is NULL or may be written.
 */
bagualu_status bagualu_engine_offload(struct bagualu_engine *engine,
                                      struct bagualu_key key,
                                      struct bagualu_memory from,
                                      uint64_t producer,
                                      uint64_t *ticket);

/**
 * The next copy-out that has ended: `found` receives 1, and `key` and `bytes` say whose device memory may be freed;
 * or 0 if none has.
 *
 * The caller sees to it that:
 * - Pointers are NULL or may be written.
 */
bagualu_status bagualu_engine_copied_out(struct bagualu_engine *engine,
                                         struct bagualu_key *key,
                                         uint64_t *bytes,
                                         uint32_t *found);

/**
 * Blocks until the oldest copies under way, `bytes` in all, have ended; `bagualu_engine_copied_out` then reports them.
 */
bagualu_status bagualu_engine_block_until_released(struct bagualu_engine *engine,
                                                   uint64_t bytes);

/**
 * The backward of `unit` comes after those announced before: what it offloaded is due from now on.
 */
bagualu_status bagualu_engine_announce(struct bagualu_engine *engine, uint32_t unit);

/**
 * What to bring back next, in reverse order of saving: `found` receives 1, and `key` and `bytes` say what; or 0 if nothing
 * is due or as much as the window allows is under way.
 *
 * The caller sees to it that:
 * - Pointers are NULL or may be written.
 */
bagualu_status bagualu_engine_due(struct bagualu_engine *engine,
                                  struct bagualu_key *key,
                                  uint64_t *bytes,
                                  uint32_t *found);

/**
 * Starts copying a tensor back into `into`, once all work submitted to `*after` so far has ended, where that may still
 * use the memory; `after` may be NULL.
 *
 * The caller sees to it that:
 * - `into` is memory of the engine's device. It lives, and nothing else uses it, until work submitted to the consumer
 *   after `bagualu_engine_wait` runs, `bagualu_engine_cancel` or `bagualu_engine_drain` succeeds or the engine is freed.
 */
bagualu_status bagualu_engine_reload(struct bagualu_engine *engine,
                                     uint64_t ticket,
                                     struct bagualu_memory into,
                                     const uint64_t *after);

/**
 * Work submitted to `consumer` from now on starts after the tensor is back. Uses the ticket up, also where the tensor was
 * not reloaded.
 *
 * `BAGUALU_STATUS_TICKET_SPENT` if it was used up before.
 */
bagualu_status bagualu_engine_wait(struct bagualu_engine *engine,
                                   uint64_t ticket,
                                   uint64_t consumer);

/**
 * Gives a tensor up and uses its ticket up. Blocks until its copy back has ended, if one is under way; its copy out is
 * reported as ever.
 */
bagualu_status bagualu_engine_cancel(struct bagualu_engine *engine,
                                     uint64_t ticket);

/**
 * Blocks until every copy under way has ended; `bagualu_engine_copied_out` still reports each.
 */
bagualu_status bagualu_engine_drain(struct bagualu_engine *engine);

/**
 * Writes what an engine has under way.
 *
 * The caller sees to it that:
 * - `state` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_engine_read(const struct bagualu_engine *engine, struct bagualu_engine_state *state);

/**
 * Writes the rows that each of `ranks` expert-parallel ranks receives, from the count matrix `[sources, experts]` that
 * the all-to-all dispatcher gathers on every rank. Experts are placed in order, experts / ranks on each rank.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `counts` is NULL or as long as `count_count`; `rows` is NULL or has room for `ranks`, apart from `counts`.
 */
bagualu_status bagualu_group_rows(const uint32_t *counts,
                                  size_t count_count,
                                  size_t experts,
                                  uint32_t *rows,
                                  size_t ranks);

/**
 * The group's decision for one layer of one micro-batch, from the rows of all its ranks and its smallest thresholds
 * (`bagualu_provision`): what `bagualu_gate` takes as `whole_moe` and `dispatch_chunks`.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `rows` is NULL or as long as `ranks`; the others are NULL or may be written.
 */
bagualu_status bagualu_group_decide(const uint32_t *rows,
                                    size_t ranks,
                                    uint32_t row_threshold,
                                    uint32_t dispatch_threshold,
                                    uint32_t *whole_moe,
                                    uint32_t *dispatch_chunks);

/**
 * Writes the `bagualu_strategy` of the first `count` tensors of a layer into `strategies`, one byte each.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `plan` is NULL or a plan; `strategies` is NULL or has room for `count`.
 */
bagualu_status bagualu_layer_plan_strategies(const struct bagualu_layer_plan *plan,
                                             uint8_t *strategies,
                                             size_t count);

/**
 * Writes the strategy of one tensor, a `bagualu_strategy`.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `plan` is NULL or a plan; `strategy` is NULL or may be written.
 */
bagualu_status bagualu_layer_plan_strategy(const struct bagualu_layer_plan *plan,
                                           size_t tensor,
                                           uint32_t *strategy);

/**
 * The version of the library that is loaded, as `"0.1.0"`.
 *
 * The text is static. Thread-safe.
 */
const char *bagualu_version(void);

/**
 * The same as a number: major · 1000000 + minor · 1000 + patch.
 *
 * Thread-safe.
 */
uint32_t bagualu_version_number(void);

/**
 * Writes the limits of this build.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `out` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_library_limits(struct bagualu_build_limits *out);

/**
 * The message of the call on this thread that failed last: one sentence of UTF-8 with a NUL behind it, which says
 * what is wrong, with which value, and what to do.
 *
 * `length`, where it is not NULL, receives its bytes without the NUL. The text is the library's and stays until
 * the next call on this thread that fails; a call that succeeds leaves it. Empty, and never NULL, if none has failed.
 *
 * Thread-safe: every thread has its own.
 *
 * The caller sees to it that:
 * - `length` is NULL or may be written.
 */
const char *bagualu_last_message(size_t *length);

/**
 * Bytes that the call on this thread that failed last needed, and those there were.
 *
 * Returns 1 and writes both where it failed for want of memory (`BAGUALU_STATUS_INFEASIBLE`,
 * `BAGUALU_STATUS_OUT_OF_MEMORY`, …); else returns 0 and writes nothing. Either pointer may be NULL.
 *
 * Thread-safe: every thread has its own.
 *
 * The caller sees to it that:
 * - Pointers are NULL or may be written.
 */
uint32_t bagualu_last_shortage(uint64_t *needed, uint64_t *available);

/**
 * Reads a model. Files are read, never run.
 *
 * Thread-safe. Everything is copied. `*model` is the caller's, to be freed by `bagualu_model_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; its texts are NULL or end with NUL, `text` has `text_length`
 *   bytes, arrays are as long as their counts; `model` is NULL or may be written.
 */
bagualu_status bagualu_model_read(const struct bagualu_model_config *config,
                                  struct bagualu_model **model);

/**
 * Frees a model; NULL is nothing.
 */
bagualu_status bagualu_model_free(struct bagualu_model *model);

/**
 * Writes what a model has.
 *
 * The caller sees to it that:
 * - `info` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_model_describe(const struct bagualu_model *model, struct bagualu_model_info *info);

/**
 * What was said when the model was read: what may change memory and is not modelled. `text` receives one sentence,
 * the model's; notes count from 0 (`bagualu_model_info.notes`).
 *
 * The caller sees to it that:
 * - `text` is NULL or may be written.
 */
bagualu_status bagualu_model_note(const struct bagualu_model *model,
                                  size_t note,
                                  const char **text);

/**
 * Writes what pipeline rank `rank` has.
 *
 * The caller sees to it that:
 * - `info` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_model_rank(const struct bagualu_model *model,
                                  size_t rank,
                                  struct bagualu_rank_info *info);

/**
 * Writes what a kind of layer has.
 *
 * The caller sees to it that:
 * - `info` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_model_type(const struct bagualu_model *model,
                                  size_t layer_type,
                                  struct bagualu_type_info *info);

/**
 * Writes a tensor of a kind of layer; `name`, which may be NULL, receives its name, the model's.
 *
 * The caller sees to it that:
 * - Pointers are NULL or may be written.
 */
bagualu_status bagualu_model_tensor(const struct bagualu_model *model,
                                    size_t layer_type,
                                    size_t tensor,
                                    struct bagualu_tensor_type *info,
                                    const char **name);

/**
 * Writes an operator of a kind of layer; `name`, which may be NULL, receives its name, the model's.
 *
 * The caller sees to it that:
 * - Pointers are NULL or may be written.
 */
bagualu_status bagualu_model_op(const struct bagualu_model *model,
                                size_t layer_type,
                                size_t op,
                                struct bagualu_op_type *info,
                                const char **name);

/**
 * Makes a budget of `capacity` bytes for a schedule.
 *
 * `events` are the schedule's, in order; `floors[u]` is what unit u holds at least, `demands[u]` what it is expected to
 * hold (may be NULL: its floor), for `unit_count` units. All are copied.
 *
 * `BAGUALU_STATUS_INFEASIBLE` if the floors alone do not fit.
 *
 * Thread-safe. `*budget` is the caller's, to be freed by `bagualu_budget_free`.
 *
 * The caller sees to it that:
 * - Each array is NULL or as long as its count; `budget` is NULL or may be written.
 */
bagualu_status bagualu_budget_new(uint64_t capacity,
                                  uint32_t share,
                                  const struct bagualu_event *events,
                                  size_t event_count,
                                  const uint64_t *floors,
                                  const uint64_t *demands,
                                  size_t unit_count,
                                  struct bagualu_budget **budget);

/**
 * Frees a budget; NULL is nothing.
 */
bagualu_status bagualu_budget_free(struct bagualu_budget *budget);

/**
 * What the next event's forward may hold.
 *
 * The caller sees to it that:
 * - `allowance` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_budget_forward(const struct bagualu_budget *budget,
                                      struct bagualu_allowance *allowance);

/**
 * Records what the next event's forward holds, measured or planned. More than its limit is accepted: later limits
 * then shrink, and may fall below their floors.
 */
bagualu_status bagualu_budget_launch(struct bagualu_budget *budget,
                                     uint64_t held);

/**
 * Records the next event's backward; `freed`, which may be NULL, receives what its unit held.
 *
 * The caller sees to it that:
 * - `freed` is NULL or may be written.
 */
bagualu_status bagualu_budget_release(struct bagualu_budget *budget, uint64_t *freed);

/**
 * Sets what `unit`, between its forward and its backward, holds.
 */
bagualu_status bagualu_budget_hold(struct bagualu_budget *budget, uint32_t unit, uint64_t held);

/**
 * Starts the iteration again with the same floors.
 */
bagualu_status bagualu_budget_restart(struct bagualu_budget *budget);

/**
 * Writes where a budget stands.
 *
 * The caller sees to it that:
 * - `state` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_budget_read(const struct bagualu_budget *budget, struct bagualu_budget_state *state);

/**
 * By how much `unit`, between its forward and its backward, may grow with every later limit still at least its floor.
 *
 * The caller sees to it that:
 * - `bytes` is NULL or may be written.
 */
bagualu_status bagualu_budget_headroom(const struct bagualu_budget *budget,
                                       uint32_t unit,
                                       uint64_t *bytes);

/**
 * Makes the controller of one pipeline rank of a model. `config` may be NULL.
 *
 * `BAGUALU_STATUS_INFEASIBLE` if even full recomputation does not fit; `bagualu_last_shortage` then has the bytes.
 *
 * Thread-safe. `*controller` is the caller's, to be freed by `bagualu_controller_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; `controller` is NULL or may be written.
 */
bagualu_status bagualu_controller_from_model(const struct bagualu_model *model,
                                             uint32_t rank,
                                             const struct bagualu_controller_config *config,
                                             struct bagualu_controller **controller);

/**
 * Makes the controller of a pipeline rank that arrays describe. `config` may be NULL.
 *
 * `BAGUALU_STATUS_INFEASIBLE` if even full recomputation does not fit; `bagualu_last_shortage` then has the bytes.
 *
 * Thread-safe. Everything is copied. `*controller` is the caller's, to be freed by `bagualu_controller_free`.
 *
 * The caller sees to it that:
 * - Structs are NULL or have their `struct_size` set, and arrays as long as their counts; `controller` is NULL or may be
 *   written.
 */
bagualu_status bagualu_controller_from_stage(const struct bagualu_stage *stage,
                                             const struct bagualu_pipeline *pipeline,
                                             const struct bagualu_controller_config *config,
                                             struct bagualu_controller **controller);

/**
 * Frees a controller; NULL is nothing.
 */
bagualu_status bagualu_controller_free(struct bagualu_controller *controller);

/**
 * Writes the static decisions.
 *
 * The caller sees to it that:
 * - `provision` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_controller_provision(const struct bagualu_controller *controller,
                                            struct bagualu_provision *provision);

/**
 * Writes the events of an iteration in order; as `bagualu_pipeline_events`.
 *
 * The caller sees to it that:
 * - `events` is NULL or has room for `capacity`; `count` is NULL or may be written.
 */
bagualu_status bagualu_controller_events(const struct bagualu_controller *controller,
                                         struct bagualu_event *events,
                                         size_t capacity,
                                         size_t *count);

/**
 * Writes the type of each layer of a unit, in program order.
 *
 * `count` always receives their number; if `capacity` is smaller, nothing else is written and the status is
 * `BAGUALU_STATUS_BUFFER_TOO_SMALL`.
 *
 * The caller sees to it that:
 * - `types` is NULL or has room for `capacity`; `count` is NULL or may be written.
 */
bagualu_status bagualu_controller_layers(const struct bagualu_controller *controller,
                                         uint32_t unit,
                                         uint16_t *types,
                                         size_t capacity,
                                         size_t *count);

/**
 * Writes where a controller stands.
 *
 * The caller sees to it that:
 * - `state` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_controller_read(const struct bagualu_controller *controller,
                                       struct bagualu_controller_state *state);

/**
 * The forward of `unit` starts: its layers are planned at the rows expected. `allowance` may be NULL.
 *
 * The caller sees to it that:
 * - `allowance` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_controller_forward(struct bagualu_controller *controller,
                                          uint32_t unit,
                                          struct bagualu_allowance *allowance);

/**
 * Whether the operators before the next layer's gate may start: `wait_bytes` receives 0 if so, else the bytes that
 * copies to the host must free first.
 *
 * The caller sees to it that:
 * - `wait_bytes` is NULL or may be written.
 */
bagualu_status bagualu_controller_to_gate(struct bagualu_controller *controller,
                                          uint64_t *wait_bytes);

/**
 * The gate of `layer` has run (`gate` may be NULL for a layer without a router): the plan is checked against the real
 * rows, changed where it does not fit, and written.
 *
 * The caller sees to it that:
 * - `gate` is NULL or a struct with its `struct_size` set; so is `decision`.
 */
bagualu_status bagualu_controller_gate(struct bagualu_controller *controller,
                                       size_t layer,
                                       const struct bagualu_gate *gate,
                                       struct bagualu_decision *decision);

/**
 * Whether the layer decided last may start: `wait_bytes` receives 0 if so, and its bytes are counted; else the bytes
 * that copies to the host must free first.
 *
 * A layer that could never start whole runs its experts in row chunks: `bagualu_controller_decided` has what stands.
 *
 * The caller sees to it that:
 * - `wait_bytes` is NULL or may be written.
 */
bagualu_status bagualu_controller_may_start(struct bagualu_controller *controller,
                                            uint64_t *wait_bytes);

/**
 * The layer has run; its offloaded tensors are copied out now: `offload_bytes` (may be NULL) of them.
 *
 * The caller sees to it that:
 * - `offload_bytes` is NULL or may be written.
 */
bagualu_status bagualu_controller_layer_done(struct bagualu_controller *controller, uint64_t *offload_bytes);

/**
 * The forward has ended; `measured` is what it really holds, NULL if that was not measured.
 *
 * The caller sees to it that:
 * - `measured` is NULL or may be read.
 */
bagualu_status bagualu_controller_forward_done(struct bagualu_controller *controller,
                                               const uint64_t *measured);

/**
 * A copy of `bytes` of `unit` to the host has ended.
 */
bagualu_status bagualu_controller_copied_out(struct bagualu_controller *controller,
                                             uint32_t unit,
                                             uint64_t bytes);

/**
 * What to offload because something holds more than its limit; `correction->tensors` is 0 if nothing. Call it after a
 * forward until it is.
 *
 * The caller sees to it that:
 * - `correction` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_controller_correct(struct bagualu_controller *controller,
                                          struct bagualu_correction *correction);

/**
 * What was decided for a layer of a unit between its forward and its backward; `replanned` is 0.
 *
 * The caller sees to it that:
 * - `decision` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_controller_decided(const struct bagualu_controller *controller,
                                          uint32_t unit,
                                          size_t layer,
                                          struct bagualu_decision *decision);

/**
 * Starts the next iteration; everything of the last one must have ended.
 */
bagualu_status bagualu_controller_restart(struct bagualu_controller *controller);

/**
 * Forgets the iteration under way, for a program that has freed everything of it.
 */
bagualu_status bagualu_controller_abandon(struct bagualu_controller *controller);

/**
 * Asks to bring back, before its backward, all of `unit` that needs no collective: `granted` receives 1 if it may be.
 *
 * The caller sees to it that:
 * - `granted` is NULL or may be written.
 */
bagualu_status bagualu_controller_recover_early(struct bagualu_controller *controller,
                                                uint32_t unit,
                                                uint32_t *granted);

/**
 * The backward of `unit` starts.
 */
bagualu_status bagualu_controller_backward(struct bagualu_controller *controller, uint32_t unit);

/**
 * Whether `layer` of the backward under way may be recovered and run: `wait_bytes` receives 0 if so, else the bytes that
 * must be freed first.
 *
 * The caller sees to it that:
 * - `wait_bytes` is NULL or may be written.
 */
bagualu_status bagualu_controller_may_recover(struct bagualu_controller *controller,
                                              size_t layer,
                                              uint64_t *wait_bytes);

/**
 * The layer's backward has ended.
 */
bagualu_status bagualu_controller_recovered(struct bagualu_controller *controller);

/**
 * The backward has ended: nothing of its unit is left.
 */
bagualu_status bagualu_controller_backward_done(struct bagualu_controller *controller);

/**
 * Writes the schedule's events, 2 · micro-batches · chunks of them, in order.
 *
 * `count`, which must not be NULL, always receives their number if the pipeline is right; if `capacity` is smaller,
 * nothing else is written and the status is `BAGUALU_STATUS_BUFFER_TOO_SMALL`.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `pipeline` is NULL or a struct with its `struct_size` set; `events` is NULL or has room for `capacity`;
 *   `count` is NULL or may be written.
 */
bagualu_status bagualu_pipeline_events(const struct bagualu_pipeline *pipeline,
                                       struct bagualu_event *events,
                                       size_t capacity,
                                       size_t *count);

/**
 * Makes a scheduler; `config` may be NULL.
 *
 * Thread-safe. `*scheduler` is the caller's, to be freed by `bagualu_scheduler_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; `scheduler` is NULL or may be written.
 */
bagualu_status bagualu_scheduler_new(const struct bagualu_scheduler_config *config,
                                     struct bagualu_scheduler **scheduler);

/**
 * Frees a scheduler; NULL is nothing.
 */
bagualu_status bagualu_scheduler_free(struct bagualu_scheduler *scheduler);

/**
 * Writes an order, as many steps as the chains have operators, and what it is worth (`solution` may be NULL).
 *
 * `BAGUALU_STATUS_INFEASIBLE` if no order fits into the capacity; `bagualu_last_shortage` then has the smallest that does.
 *
 * The caller sees to it that:
 * - `chains` is NULL or a struct with its `struct_size` set and arrays as long as their counts; `order` is NULL or has room
 *   for `capacity`, apart from all else; `solution` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_scheduler_schedule(struct bagualu_scheduler *scheduler,
                                          const struct bagualu_chains *chains,
                                          struct bagualu_step *order,
                                          size_t capacity,
                                          struct bagualu_solution *solution);

/**
 * Runs an order of the chains: its makespan and peak. `lower_bound_ns` and `optimal` are 0.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - As for `bagualu_scheduler_schedule`; `order` has `count` steps.
 */
bagualu_status bagualu_chains_run(const struct bagualu_chains *chains,
                                  const struct bagualu_step *order,
                                  size_t count,
                                  struct bagualu_solution *solution);

/**
 * Makes a selector; `config` may be NULL.
 *
 * Thread-safe. `*selector` is the caller's, to be freed by `bagualu_selector_free`.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set; `selector` is NULL or may be written.
 */
bagualu_status bagualu_selector_new(const struct bagualu_selector_config *config,
                                    struct bagualu_selector **selector);

/**
 * Frees a selector; NULL is nothing.
 */
bagualu_status bagualu_selector_free(struct bagualu_selector *selector);

/**
 * Selects: writes a plan for each of `layer_count` layers into `plans`, and what they hold and cost into `selection`
 * (may be NULL).
 *
 * `BAGUALU_STATUS_INFEASIBLE` and its like if nothing fits; `bagualu_last_shortage` then has the bytes.
 *
 * The caller sees to it that:
 * - `layers` is NULL or as long as its count, with arrays as long as theirs; `plans` is NULL or has room for as many, apart from
 *   all else; structs have their `struct_size` set.
 */
bagualu_status bagualu_selector_select(struct bagualu_selector *selector,
                                       const struct bagualu_layer *layers,
                                       size_t layer_count,
                                       const struct bagualu_selection_limits *limits,
                                       struct bagualu_layer_plan *plans,
                                       struct bagualu_selection *selection);

/**
 * What a plan of one layer holds and costs; `selection.optimal` is 0.
 *
 * `BAGUALU_STATUS_INVALID_VALUE` if the layer does not offer it.
 *
 * Thread-safe.
 *
 * The caller sees to it that:
 * - `layer` is NULL or a layer with arrays as long as their counts; `plan` is NULL or a plan; `selection` is NULL or a
 *   struct with its `struct_size` set.
 */
bagualu_status bagualu_layer_evaluate(const struct bagualu_layer *layer,
                                      const struct bagualu_layer_plan *plan,
                                      uint32_t allow_collectives,
                                      struct bagualu_selection *selection);

/**
 * Makes a rank of a model.
 *
 * Thread-safe. `*out` is the caller's, to be freed by `bagualu_rank_free`; model and device handles may be freed before.
 *
 * The caller sees to it that:
 * - `config` is NULL or a struct with its `struct_size` set, as are the structs in it; its stream is one of its device, its
 *   allocator's functions may be called until the rank is freed; `out` is NULL or may be written.
 */
bagualu_status bagualu_rank_from_model(const struct bagualu_model *model,
                                       uint32_t rank,
                                       const struct bagualu_rank_config *config,
                                       struct bagualu_rank **out);

/**
 * Makes a rank that arrays describe.
 *
 * Thread-safe. Everything is copied. `*out` is the caller's, to be freed by `bagualu_rank_free`; the device's handle may be
 * freed before.
 *
 * The caller sees to it that:
 * - As for `bagualu_rank_from_model` and `bagualu_controller_from_stage`.
 */
bagualu_status bagualu_rank_from_stage(const struct bagualu_stage *stage,
                                       const struct bagualu_pipeline *pipeline,
                                       const struct bagualu_rank_config *config,
                                       struct bagualu_rank **out);

/**
 * Frees a rank, after the copies under way; NULL is nothing. Device memory that the program has allocated by it is its own.
 */
bagualu_status bagualu_rank_free(struct bagualu_rank *rank);

/**
 * The forward of `unit` starts; what the next backward needs begins to come back, if there is room.
 */
bagualu_status bagualu_rank_begin_forward(struct bagualu_rank *rank, uint32_t unit);

/**
 * Waits until the operators before the next layer's gate may start.
 */
bagualu_status bagualu_rank_to_gate(struct bagualu_rank *rank);

/**
 * The gate of the next layer has run (`gate` may be NULL for a layer without a router): decides what is done with it,
 * reserves host memory for what it offloads, and waits until its other operators may start.
 *
 * The caller sees to it that:
 * - `gate` is NULL or a struct with its `struct_size` set; so is `decision`.
 */
bagualu_status bagualu_rank_gate(struct bagualu_rank *rank,
                                 const struct bagualu_gate *gate,
                                 struct bagualu_decision *decision);

/**
 * Device memory for an operator that was admitted, from the rank's allocator. Saved by `bagualu_rank_save`, or given back by
 * `bagualu_rank_give_back`.
 *
 * The caller sees to it that:
 * - `memory` is NULL or may be written.
 */
bagualu_status bagualu_rank_allocate(struct bagualu_rank *rank,
                                     uint64_t bytes,
                                     struct bagualu_memory *memory);

/**
 * Gives back what `bagualu_rank_allocate` wrote and was not saved, after the work of the compute stream so far.
 *
 * The caller sees to it that:
 * - `memory` is whole and is given back once; no work uses it but what was submitted to the compute stream before.
 */
bagualu_status bagualu_rank_give_back(struct bagualu_rank *rank,
                                      struct bagualu_memory memory);

/**
 * Hands a saved tensor of the layer under way over, a block input too. `cast` says what it is to whom would quantise it;
 * it may be NULL for a tensor that may not be quantised.
 *
 * The caller sees to it that:
 * - `memory` is from the rank's allocator; it is written by work submitted to the compute stream before, and read by
 *   nothing but that stream's work and the rank from now on. `cast` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_rank_save(struct bagualu_rank *rank,
                                 size_t tensor,
                                 struct bagualu_memory memory,
                                 const struct bagualu_cast *cast);

/**
 * Leaves a payload and the state of the random numbers (`rng_bytes` of it, copied) for an operator of the layer under way,
 * should it run again.
 *
 * The caller sees to it that:
 * - `rng` is NULL or has `rng_bytes`.
 */
bagualu_status bagualu_rank_remember(struct bagualu_rank *rank,
                                     size_t op,
                                     uint64_t payload,
                                     const uint8_t *rng,
                                     size_t rng_bytes);

/**
 * The layer's forward has been submitted: its tensors are dropped, cast or copied out as decided.
 */
bagualu_status bagualu_rank_layer_done(struct bagualu_rank *rank);

/**
 * The forward has ended; `measured` is what it really holds, NULL if that was not measured.
 *
 * The caller sees to it that:
 * - `measured` is NULL or may be read.
 */
bagualu_status bagualu_rank_end_forward(struct bagualu_rank *rank, const uint64_t *measured);

/**
 * The iteration has ended.
 */
bagualu_status bagualu_rank_end_iteration(struct bagualu_rank *rank);

/**
 * Ends the iteration in the middle, after an error: what it has on the device and in host memory is freed.
 */
bagualu_status bagualu_rank_abandon(struct bagualu_rank *rank);

/**
 * Writes the static decisions.
 *
 * The caller sees to it that:
 * - `provision` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_rank_provision(const struct bagualu_rank *rank, struct bagualu_provision *provision);

/**
 * Writes what a rank has done.
 *
 * The caller sees to it that:
 * - `counts` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_rank_count(struct bagualu_rank *rank, struct bagualu_rank_counts *counts);

/**
 * Writes where the rank's controller stands.
 *
 * The caller sees to it that:
 * - `state` is NULL or a struct with its `struct_size` set.
 */
bagualu_status bagualu_rank_read(const struct bagualu_rank *rank, struct bagualu_controller_state *state);

/**
 * The backward of `unit` starts.
 */
bagualu_status bagualu_rank_begin_backward(struct bagualu_rank *rank, uint32_t unit);

/**
 * Waits until `layer` may be recovered, and brings its saved tensors back for work submitted to the compute stream from now
 * on. `hook` is called, with `user`, for each operator that runs again; NULL where plans recompute nothing.
 *
 * The caller sees to it that:
 * - `hook` may be called with `user` during this call, and does not throw.
 */
bagualu_status bagualu_rank_recover(struct bagualu_rank *rank,
                                    size_t layer,
                                    bagualu_hook hook,
                                    void *user);

/**
 * In how many parts the dispatch of a layer of the backward was split; if more than 1, `bagualu_rank_recover_part` before the
 * backward of each.
 *
 * The caller sees to it that:
 * - `parts` is NULL or may be written.
 */
bagualu_status bagualu_rank_parts(const struct bagualu_rank *rank,
                                  size_t layer,
                                  uint32_t *parts);

/**
 * Brings one part of a split dispatch back, in place of the part before.
 *
 * The caller sees to it that:
 * - As for `bagualu_rank_recover`.
 */
bagualu_status bagualu_rank_recover_part(struct bagualu_rank *rank,
                                         size_t layer,
                                         uint32_t part,
                                         bagualu_hook hook,
                                         void *user);

/**
 * Where a saved tensor of the backward under way lies.
 *
 * The caller sees to it that:
 * - `memory` is NULL or may be written.
 */
bagualu_status bagualu_rank_tensor(const struct bagualu_rank *rank,
                                   size_t layer,
                                   size_t tensor,
                                   struct bagualu_memory *memory);

/**
 * The layer's backward has been submitted: its tensors are freed.
 */
bagualu_status bagualu_rank_layer_undone(struct bagualu_rank *rank, size_t layer);

/**
 * The backward has ended.
 */
bagualu_status bagualu_rank_end_backward(struct bagualu_rank *rank);

/**
 * The name of a status, as in the header (`BAGUALU_STATUS_INFEASIBLE`); `BAGUALU_STATUS_UNKNOWN` for any other number.
 *
 * The text is static. Thread-safe.
 */
const char *bagualu_status_name(uint32_t status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BAGUALU_H */
