/* The planning half of the C API: library, model, budget, selector, scheduler, controller, group. */
#include "check.h"

static void library(void) {
    bagualu_build_limits limits = {0};
    limits.struct_size = sizeof limits;
    OK(bagualu_library_limits(&limits));
    CHECK(limits.tensors == 64 && limits.layers >= 1);
    CHECK(strcmp(bagualu_version(), "0.1.0") == 0);
    CHECK(bagualu_version_number() ==
          BAGUALU_VERSION_MAJOR * 1000000 + BAGUALU_VERSION_MINOR * 1000 + BAGUALU_VERSION_PATCH);
    CHECK(strcmp(bagualu_status_name(BAGUALU_STATUS_INFEASIBLE), "BAGUALU_STATUS_INFEASIBLE") == 0);
    CHECK(strcmp(bagualu_status_name(1), "BAGUALU_STATUS_UNKNOWN") == 0);
}

static void budget(void) {
    const bagualu_event events[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
    const uint64_t floors[] = {10, 10};
    bagualu_budget *budget = NULL;
    EXPECT(BAGUALU_STATUS_INFEASIBLE,
           bagualu_budget_new(19, BAGUALU_SHARE_EVEN, events, 4, floors, NULL, 2, &budget));
    uint64_t needed = 0, available = 0;
    CHECK(bagualu_last_shortage(&needed, &available) == 1 && needed == 20 && available == 19);
    size_t length = 0;
    CHECK(strlen(bagualu_last_message(&length)) == length && length > 0);
    CHECK(budget == NULL);

    OK(bagualu_budget_new(100, BAGUALU_SHARE_EVEN, events, 4, floors, NULL, 2, &budget));
    bagualu_allowance allowance = {sizeof allowance, 0, 0, 0};
    OK(bagualu_budget_forward(budget, &allowance));
    CHECK(allowance.free == 100 && allowance.limit == 90 && allowance.quota == 50);
    OK(bagualu_budget_launch(budget, 70));
    OK(bagualu_budget_forward(budget, &allowance));
    CHECK(allowance.free == 30 && allowance.quota == 30);
    OK(bagualu_budget_launch(budget, 30));
    EXPECT(BAGUALU_STATUS_OUT_OF_ORDER, bagualu_budget_forward(budget, &allowance));
    uint64_t freed = 0;
    OK(bagualu_budget_release(budget, &freed));
    CHECK(freed == 70);
    OK(bagualu_budget_release(budget, NULL));
    bagualu_budget_state state = {.struct_size = sizeof state};
    OK(bagualu_budget_read(budget, &state));
    CHECK(state.held == 0 && state.peak == 100);
    OK(bagualu_budget_free(budget));
    EXPECT(BAGUALU_STATUS_FREED_HANDLE, bagualu_budget_free(budget));
    EXPECT(BAGUALU_STATUS_FREED_HANDLE, bagualu_budget_restart(budget));
    OK(bagualu_budget_free(NULL));
}

static void selector(void) {
    /* x, a block input; a, which a norm makes and a matrix product saves. */
    const bagualu_tensor tensors[] = {
        {.bytes = 64, .flags = BAGUALU_TENSOR_BLOCK_INPUT},
        {.bytes = 100, .copy_out_ns = 20, .copy_in_ns = 20, .cast_ns = 5, .uncast_ns = 5, .quantized_bytes = 52,
         .flags = BAGUALU_TENSOR_OFFLOAD | BAGUALU_TENSOR_QUANTIZE},
    };
    const bagualu_op ops[] = {
        {.reads = 1, .makes = 2, .forward_ns = 25},
        {.reads = 2, .saves = 2, .forward_ns = 90, .collective = BAGUALU_GROUP_TP},
    };
    const bagualu_layer layer = {tensors, 2, ops, 2};
    bagualu_selection_limits limits = {.struct_size = sizeof limits, .bytes = 100, .host_bytes = UINT64_MAX};
    const uint32_t methods[] = {BAGUALU_SELECTOR_EXACT, BAGUALU_SELECTOR_RATIO, BAGUALU_SELECTOR_PAPER};
    for (size_t i = 0; i < 3; i++) {
        bagualu_selector_config config = {.struct_size = sizeof config, .method = methods[i]};
        bagualu_selector *selector = NULL;
        OK(bagualu_selector_new(&config, &selector));
        bagualu_layer_plan plan = {0, 0, 0};
        bagualu_selection selection = {.struct_size = sizeof selection};
        OK(bagualu_selector_select(selector, &layer, 1, &limits, &plan, &selection));
        CHECK(selection.bytes <= 100);
        bagualu_selection evaluated = {.struct_size = sizeof evaluated};
        OK(bagualu_layer_evaluate(&layer, &plan, 0, &evaluated));
        CHECK(evaluated.bytes == selection.bytes && evaluated.added_ns == selection.added_ns);
        if (methods[i] == BAGUALU_SELECTOR_EXACT) {
            CHECK(selection.optimal == 1 && selection.added_ns == 25 && plan.recompute == 2);
            uint8_t strategies[2];
            OK(bagualu_layer_plan_strategies(&plan, strategies, 2));
            CHECK(strategies[0] == BAGUALU_STRATEGY_KEEP && strategies[1] == BAGUALU_STRATEGY_RECOMPUTE);
        }
        limits.bytes = 63;
        EXPECT(methods[i] == BAGUALU_SELECTOR_PAPER ? BAGUALU_STATUS_OUT_OF_CANDIDATES : BAGUALU_STATUS_INFEASIBLE,
               bagualu_selector_select(selector, &layer, 1, &limits, &plan, NULL));
        limits.bytes = 100;
        OK(bagualu_selector_free(selector));
    }
}

static void scheduler(void) {
    const bagualu_chain_op forward[] = {
        {.ns = 30, .resource = BAGUALU_RESOURCE_COMPUTE},
        {.ns = 20, .resource = BAGUALU_RESOURCE_COMMUNICATION},
        {.ns = 10, .resource = BAGUALU_RESOURCE_COMPUTE},
    };
    const bagualu_chain_op backward[] = {
        {.ns = 20, .resource = BAGUALU_RESOURCE_COMMUNICATION},
        {.ns = 30, .resource = BAGUALU_RESOURCE_COMPUTE},
    };
    bagualu_chains chains = {.struct_size = sizeof chains};
    chains.ops[BAGUALU_CHAIN_FORWARD] = forward;
    chains.counts[BAGUALU_CHAIN_FORWARD] = 3;
    chains.ops[BAGUALU_CHAIN_BACKWARD] = backward;
    chains.counts[BAGUALU_CHAIN_BACKWARD] = 2;
    bagualu_scheduler *scheduler = NULL;
    OK(bagualu_scheduler_new(NULL, &scheduler));
    bagualu_step order[5];
    bagualu_solution solution = {.struct_size = sizeof solution};
    EXPECT(BAGUALU_STATUS_BUFFER_TOO_SMALL, bagualu_scheduler_schedule(scheduler, &chains, order, 4, NULL));
    OK(bagualu_scheduler_schedule(scheduler, &chains, order, 5, &solution));
    CHECK(solution.makespan_ns == 70 && solution.optimal == 1);
    bagualu_solution run = {.struct_size = sizeof run};
    OK(bagualu_chains_run(&chains, order, 5, &run));
    CHECK(run.makespan_ns == 70);
    OK(bagualu_scheduler_free(scheduler));
}

/* Runs one iteration as a program does whose copies end at once; returns the most bytes on the device. */
static uint64_t iterate(bagualu_controller *controller, uint32_t rows, uint64_t *offloaded) {
    bagualu_event events[256];
    size_t count = 0;
    OK(bagualu_controller_events(controller, events, 256, &count));
    for (size_t at = 0; at < count; at++) {
        uint32_t unit = events[at].unit;
        uint16_t types[64];
        size_t layers = 0;
        OK(bagualu_controller_layers(controller, unit, types, 64, &layers));
        uint64_t wait = 0;
        if (events[at].backward) {
            OK(bagualu_controller_backward(controller, unit));
            for (size_t layer = layers; layer-- > 0;) {
                OK(bagualu_controller_may_recover(controller, layer, &wait));
                CHECK(wait == 0);
                OK(bagualu_controller_recovered(controller));
            }
            OK(bagualu_controller_backward_done(controller));
            continue;
        }
        bagualu_allowance allowance = {.struct_size = sizeof allowance};
        OK(bagualu_controller_forward(controller, unit, &allowance));
        CHECK(allowance.quota <= allowance.limit);
        for (size_t layer = 0; layer < layers; layer++) {
            OK(bagualu_controller_to_gate(controller, &wait));
            CHECK(wait == 0);
            bagualu_gate gate = {.struct_size = sizeof gate, .rows = rows};
            bagualu_decision decision = {.struct_size = sizeof decision};
            OK(bagualu_controller_gate(controller, layer, &gate, &decision));
            OK(bagualu_controller_may_start(controller, &wait));
            CHECK(wait == 0);
            uint64_t leaving = 0;
            OK(bagualu_controller_layer_done(controller, &leaving));
            CHECK(leaving == decision.offload_bytes);
            OK(bagualu_controller_copied_out(controller, unit, leaving));
            *offloaded += leaving;
        }
        OK(bagualu_controller_forward_done(controller, NULL));
        bagualu_correction correction = {.struct_size = sizeof correction};
        OK(bagualu_controller_correct(controller, &correction));
        CHECK(correction.tensors == 0);
    }
    bagualu_controller_state state = {.struct_size = sizeof state};
    OK(bagualu_controller_read(controller, &state));
    CHECK(state.current_bytes == 0 && state.held_bytes == 0);
    CHECK(state.peak_bytes <= state.device_bytes);
    OK(bagualu_controller_restart(controller));
    return state.peak_bytes;
}

/* A rank that arrays describe: a norm, dispatch and an expert whose output is saved. */
static void controller_of_arrays(void) {
    const bagualu_tensor_type tensors[] = {
        {.bytes = {100, 0}, .flags = BAGUALU_TENSOR_BLOCK_INPUT},
        {.bytes = {0, 8}, .flags = BAGUALU_TENSOR_OFFLOAD},
        {.bytes = {0, 16}, .quantized = {0, 9}, .flags = BAGUALU_TENSOR_OFFLOAD | BAGUALU_TENSOR_QUANTIZE},
    };
    const bagualu_op_type ops[] = {
        {.reads = 1, .makes = 2, .forward = {50, 100}, .resource = BAGUALU_RESOURCE_COMMUNICATION,
         .collective = BAGUALU_GROUP_EP},
        {.reads = 2, .makes = 4, .saves = 2, .forward = {50, 1000}},
        {.reads = 4, .saves = 4, .forward = {50, 1000}},
    };
    const bagualu_layer_type type = {
        .tensors = tensors, .tensor_count = 3, .ops = ops, .op_count = 3, .moe = 6, .experts = 6, .routed = 1};
    const uint16_t types[] = {0, 0};
    const bagualu_chunk chunk = {types, 2};
    bagualu_stage stage = {.struct_size = sizeof stage, .types = &type, .type_count = 1, .chunks = &chunk,
                           .chunk_count = 1, .device_bytes = 9000, .host_bytes = 20000, .balanced_rows = 32};
    stage.rooflines.copy_out.bytes_per_s = stage.rooflines.copy_in.bytes_per_s = 1000000000;
    stage.rooflines.cast.bytes_per_s = stage.rooflines.uncast.bytes_per_s = 2000000000;
    bagualu_pipeline pipeline = {.struct_size = sizeof pipeline, .ranks = 4, .rank = 0, .micro_batches = 6};
    bagualu_controller *controller = NULL;
    OK(bagualu_controller_from_stage(&stage, &pipeline, NULL, &controller));
    bagualu_provision provision = {.struct_size = sizeof provision};
    OK(bagualu_controller_provision(controller, &provision));
    CHECK(provision.row_threshold >= 32 && provision.dispatch_threshold >= 32);
    uint64_t offloaded = 0;
    uint64_t usual = iterate(controller, 32, &offloaded);
    uint64_t spike = iterate(controller, provision.row_threshold, &offloaded);
    CHECK(usual <= 9000 && spike <= 9000);

    /* The group's provision is taken as it is. */
    bagualu_controller_config config = {.struct_size = sizeof config, .provision = &provision};
    bagualu_controller *again = NULL;
    OK(bagualu_controller_from_stage(&stage, &pipeline, &config, &again));
    OK(bagualu_controller_free(again));

    stage.device_bytes = 500;
    EXPECT(BAGUALU_STATUS_INFEASIBLE, bagualu_controller_from_stage(&stage, &pipeline, NULL, &again));
    uint64_t needed = 0, available = 0;
    CHECK(bagualu_last_shortage(&needed, &available) == 1 && needed > 500);
    OK(bagualu_controller_free(controller));
}

static void controller_of_a_model(const char *script) {
    bagualu_model_config config = {.struct_size = sizeof config, .path = script};
    bagualu_model *model = NULL;
    OK(bagualu_model_read(&config, &model));
    bagualu_model_info info = {.struct_size = sizeof info};
    OK(bagualu_model_describe(model, &info));
    CHECK(info.ranks > 0 && info.types > 0 && info.micro_batches > 0);
    int experts = 0;
    for (uint32_t type = 0; type < info.types; type++) {
        bagualu_type_info kind = {.struct_size = sizeof kind};
        OK(bagualu_model_type(model, type, &kind));
        experts |= strcmp(kind.name, "moe") == 0;
        for (uint32_t tensor = 0; tensor < kind.tensors; tensor++) {
            bagualu_tensor_type found;
            const char *name = NULL;
            OK(bagualu_model_tensor(model, type, tensor, &found, &name));
            CHECK(name != NULL && name[0] != 0);
        }
    }
    CHECK(experts);
    bagualu_controller *controller = NULL;
    OK(bagualu_controller_from_model(model, 0, NULL, &controller));
    EXPECT(BAGUALU_STATUS_NO_SUCH_INDEX, bagualu_controller_from_model(model, info.ranks, NULL, &controller));
    /* What was made of the model lives without it. */
    OK(bagualu_model_free(model));
    uint64_t offloaded = 0;
    iterate(controller, info.balanced_rows, &offloaded);
    EXPECT(BAGUALU_STATUS_WRONG_HANDLE, bagualu_model_free((bagualu_model *)controller));
    OK(bagualu_controller_free(controller));
}

static void group(void) {
    const uint32_t counts[] = {1, 2, 3, 4, 10, 20, 30, 40};
    uint32_t rows[2], whole = 9, chunks = 9;
    OK(bagualu_group_rows(counts, 8, 4, rows, 2));
    CHECK(rows[0] == 33 && rows[1] == 77);
    OK(bagualu_group_decide(rows, 2, 50, 60, &whole, &chunks));
    CHECK(whole == 1 && chunks == 2);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    library();
    budget();
    selector();
    scheduler();
    controller_of_arrays();
    controller_of_a_model(argv[1]);
    group();
    puts("plan: ok");
    return 0;
}
