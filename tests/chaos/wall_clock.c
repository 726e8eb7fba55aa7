/* Shifts the wall clock of one process: loaded by LD_PRELOAD, it changes CLOCK_REALTIME by two 64-bit numbers of the
 * file that TOCSIN_CLOCK_OFFSET names: milliseconds that are added, and, where it is above 0, the milliseconds in which
 * the clock goes on. The file is mapped, so that a test can set the clock of a process that runs. CLOCK_MONOTONIC is as
 * it was. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *changes;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("TOCSIN_CLOCK_OFFSET");
    int file = path != NULL ? open(path, O_RDONLY) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        changes = mapped;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (failed == 0 && changes != NULL && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t shifted = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + changes[0] * 1000000;
        if (changes[1] > 0)
            shifted -= shifted % (changes[1] * 1000000);
        at->tv_sec = shifted / 1000000000;
        at->tv_nsec = shifted % 1000000000;
    }
    return failed;
}
