/* What fp8.inc needs to be run by a C compiler of the host: a group's lanes in a loop, a grid's groups in a loop.
 * Every step of a group is a loop of its own, so no lane runs ahead of a barrier. */

#define BAGUALU_KERNEL static void
#define BAGUALU_DEVICE static inline
#define BAGUALU_SHARED
#define BAGUALU_GROUP bagualu_group
#define BAGUALU_GROUPS bagualu_groups
#define BAGUALU_LANES(lane) for (unsigned int lane = 0; lane < BAGUALU_THREADS; lane++)
#define BAGUALU_JOIN

static unsigned long long bagualu_group, bagualu_groups;

#define BAGUALU_LAUNCH(kernel, grid, ...)                                                    \
    for (bagualu_groups = (grid), bagualu_group = 0; bagualu_group < bagualu_groups; bagualu_group++) { \
        kernel(__VA_ARGS__);                                                                 \
    }
