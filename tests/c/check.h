/* What the C test programs share: a check that says where and why it failed. */
#ifndef CHECK_H
#define CHECK_H

#include <bagualu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s:%d: %s\n  last message: %s\n", __FILE__, __LINE__, #condition,            \
                    bagualu_last_message(NULL));                                                          \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

/* The call must end with this status. */
#define EXPECT(status, call)                                                                              \
    do {                                                                                                  \
        bagualu_status found_ = (call);                                                                   \
        if (found_ != (status)) {                                                                         \
            fprintf(stderr, "%s:%d: %s\n  is %s, not %s: %s\n", __FILE__, __LINE__, #call,                \
                    bagualu_status_name(found_), #status, bagualu_last_message(NULL));                    \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) EXPECT(BAGUALU_STATUS_OK, call)

#endif
