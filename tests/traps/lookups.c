/* A program with a function of its own for what the dynamic linker has loaded, which finds the C library's when it is called first. */
#include "traps.h"

#include <dlfcn.h>
#include <link.h>

typedef int Each(struct dl_phdr_info *, size_t, void *);
typedef int Iterate(Each *, void *);

static Iterate *found;

/* The kernel's functions have these names. Older C libraries call pointers of theirs so. */
void *__vdso_clock_gettime, *__kernel_clock_gettime;

int dl_iterate_phdr(Each *each, void *data) {
    if (found == NULL)
        found = (Iterate *)dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return found(each, data);
}

static int count(struct dl_phdr_info *info, size_t size, void *data) {
    (void)info, (void)size;
    ++*(int *)data;
    return 0;
}

static void objects_by_a_function_of_its_own(void) {
    Pair pair = on_the_ring();
    int objects = 0;
    dl_iterate_phdr(count, &objects);
    observe("some objects: %d", objects > 2);
    talk(pair.near, pair.far);
}

static void names_behind_its_own(void) {
    observe("the same: %d", dlsym(RTLD_DEFAULT, "dl_iterate_phdr") == (void *)dl_iterate_phdr);
    observe("another: %d", dlsym(RTLD_NEXT, "dl_iterate_phdr") != (void *)dl_iterate_phdr);
}

int main(int argc, char **argv) {
    const Case cases[] = {
        CASE(objects_by_a_function_of_its_own),
        CASE(names_behind_its_own),
        {NULL, NULL},
    };
    return run_cases(cases, argc, argv);
}
