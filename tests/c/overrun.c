/* Does on purpose what AddressSanitizer and valgrind must see. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "overrun") == 0) {
        /* A count that the buffer does not have: the one thing that the library cannot check. */
        bagualu_event *events = malloc(11 * sizeof *events);
        CHECK(events != NULL);
        bagualu_pipeline pipeline = {.struct_size = sizeof pipeline, .ranks = 2, .rank = 0, .micro_batches = 6};
        size_t count = 0;
        OK(bagualu_pipeline_events(&pipeline, events, 12, &count));
        /* What the library wrote is read by code that is instrumented. */
        unsigned sum = 0;
        for (size_t at = 0; at < count; at++) sum += events[at].unit;
        printf("%u\n", sum);
        free(events);
    } else {
        void *volatile lost = malloc(1000);
        CHECK(lost != NULL);
        lost = NULL;
    }
    puts("overrun: ok");
    return 0;
}
