/* An ordinary library. With a feature its constructor, which the loader runs before any check, misbehaves. */
#include <stdio.h>
#include <stdlib.h>

int an_ordinary_function(int x) { return 2 * x; }

#if defined(LOOPS)
__attribute__((constructor)) static void start(void) { for (volatile int i = 0;; i = i + 1) {} }
#elif defined(EXITS)
__attribute__((constructor)) static void start(void) { exit(0); }
#elif defined(CRASHES)
__attribute__((constructor)) static void start(void) { fprintf(stderr, "starting\n"); *(volatile int *)8 = 1; }
#elif defined(NEEDS)
int not_defined_anywhere(void);
int calls(void) { return not_defined_anywhere(); }
#endif
