/* The cxx bridge: a model is planned, an iteration driven, what fails throws rust::Error. */
#include <bagualu/bridge.h>
#include <rust/cxx.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            std::cerr << __FILE__ << ':' << __LINE__ << ": " #condition "\n";                             \
            return 1;                                                                                     \
        }                                                                                                 \
    } while (false)

using bagualu::bridge::plan;
using bagualu::bridge::Planner;

int main(int argc, char **argv) {
    CHECK(argc == 2);
    std::ostringstream script;
    script << std::ifstream(argv[1]).rdbuf();
    const std::string text = script.str();
    rust::Box<Planner> planner = plan(text, "dcu-64g", 0, 0);
    bool kept = false;
    for (const auto &event : planner->events()) {
        const std::size_t layers = planner->layers(event.unit);
        if (event.backward) {
            planner->backward(event.unit);
            for (std::size_t layer = layers; layer-- > 0;) {
                CHECK(planner->may_recover(layer) == 0);
                planner->recovered();
            }
            planner->backward_done();
            continue;
        }
        CHECK(planner->forward(event.unit).quota > 0);
        for (std::size_t layer = 0; layer < layers; ++layer) {
            CHECK(planner->to_gate() == 0);
            const auto decision = planner->gate(layer, planner->balanced_rows(), false, 1);
            CHECK(!decision.strategies.empty());
            for (const auto strategy : decision.strategies) {
                kept = kept || strategy == 0;
            }
            CHECK(planner->may_start() == 0);
            planner->copied_out(event.unit, planner->layer_done());
        }
        planner->forward_done();
    }
    planner->restart();
    CHECK(kept && planner->fingerprint() != 0);
    int errors = 0;
    try {
        planner->backward(0);
    } catch (const rust::Error &error) {
        errors += std::string(error.what()).find("is not the call that the schedule has next") != std::string::npos;
    }
    try {
        plan("torchrun nothing", "dcu-64g", 0, 0);
    } catch (const rust::Error &error) {
        ++errors;
    }
    try {
        plan(text, "h300", 0, 0);
    } catch (const rust::Error &error) {
        errors += std::string(error.what()).find("h300") != std::string::npos;
    }
    CHECK(errors == 3);
    std::cout << "bridge: ok\n";
}
