/* Shifts the wall clock of one process: loaded by LD_PRELOAD, it adds the milliseconds that the file named by
 * TOCSIN_CLOCK_OFFSET holds as a 64-bit number to CLOCK_REALTIME. The file is mapped, so that a test can set the clock
 * of a process that runs. CLOCK_MONOTONIC is as it was. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ms;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("TOCSIN_CLOCK_OFFSET");
    int file = path != NULL ? open(path, O_RDONLY) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset_ms = mapped;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (failed == 0 && offset_ms != NULL && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t shifted = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + *offset_ms * 1000000;
        at->tv_sec = shifted / 1000000000;
        at->tv_nsec = shifted % 1000000000;
    }
    return failed;
}
