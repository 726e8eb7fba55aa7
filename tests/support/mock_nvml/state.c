/* The library's own state: the lock, the current world, the control file, handles, and the way into every call. */
#include "mock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { HANDLE_MAGIC = 0x4E564D4C, MAX_HANDLES = 4096, POLL_US = 500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char script[4096];
static Control *control;
static World *world;
static unsigned long long read_generation;
static Handle handles[MAX_HANDLES];
static unsigned handle_count, opened, opened_epoch;

void mock_lock(void) { pthread_mutex_lock(&lock); }
void mock_unlock(void) { pthread_mutex_unlock(&lock); }
Control *mock_control(void) { return control; }

void mock_pause(unsigned microseconds)
{
    struct timespec time = {microseconds / 1000000, (long)(microseconds % 1000000) * 1000};
    nanosleep(&time, NULL);
}

static void attach(const char *path)
{
    char name[sizeof script + 16];
    size_t size = sizeof(Control) + FN_COUNT * sizeof(FunctionCounts);
    snprintf(script, sizeof script, "%s", path);
    snprintf(name, sizeof name, "%s.control", script);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) {
        fprintf(stderr, "mock NVML: cannot open %s\n", name);
        abort();
    }
    control = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (control == MAP_FAILED)
        abort();
    for (int fn = 0; fn < FN_COUNT; fn++)
        snprintf(control->functions[fn].name, sizeof control->functions[fn].name, "%s", mock_function_name(fn));
    memcpy(control->magic, "MOCKNVML", 8);
    mock_attach_settings(script);
    world = NULL;
}

/* Take up another script, as a freshly loaded library would: for tests that load the library into their process. */
void mock_nvml_use(const char *path)
{
    mock_lock();
    attach(path);
    opened = 0;
    mock_unlock();
}

World *mock_world(void)
{
    if (!control) {
        const char *path = getenv("TOCSIN_MOCK_NVML");
        if (!path) {
            fprintf(stderr, "mock NVML: TOCSIN_MOCK_NVML names no script\n");
            return NULL;
        }
        attach(path);
    }
    unsigned long long generation = atomic_load(&control->generation);
    if (!world || generation != read_generation) {
        World *parsed = mock_parse(script, world);
        atomic_store(&control->broken, parsed == NULL);
        if (parsed && world)
            mock_forget(world);
        world = parsed ? parsed : world;
        read_generation = generation;
    }
    return atomic_load(&control->broken) ? NULL : world;
}

nvmlReturn_t mock_opened(void)
{
    return opened && world && opened_epoch == world->epoch ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t mock_open(void)
{
    if (mock_opened() != NVML_SUCCESS)
        opened = 0;
    opened_epoch = world->epoch;
    opened++;
    atomic_fetch_add(&control->opens, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t mock_close(void)
{
    nvmlReturn_t state = mock_opened();
    if (state == NVML_SUCCESS) {
        opened--;
        atomic_fetch_add(&control->closes, 1);
    }
    return state;
}

Handle *mock_handle(int gpu, int mig)
{
    for (unsigned i = 0; i < handle_count; i++)
        if (handles[i].epoch == opened_epoch && handles[i].gpu == gpu && handles[i].mig == mig)
            return &handles[i];
    if (handle_count == MAX_HANDLES)
        abort();
    handles[handle_count] = (Handle){HANDLE_MAGIC, opened_epoch, gpu, mig};
    return &handles[handle_count++];
}

static Handle *known(nvmlDevice_t device)
{
    Handle *handle = (Handle *)(void *)device;
    int ours = handle >= handles && handle < handles + handle_count && handle->magic == HANDLE_MAGIC;
    if (ours && handle->epoch == opened_epoch)
        return handle;
    if (ours)
        atomic_fetch_add(&control->stale_handles, 1);
    return NULL;
}

static void count(int fn, int slot) { atomic_fetch_add(&control->functions[fn].calls[slot], 1); }

static Trouble *trouble_in(Part *part, int fn)
{
    if (part && part->trouble[fn].set)
        return &part->trouble[fn];
    return part && part->any.set ? &part->any : NULL;
}

static int due(Trouble *trouble)
{
    if (trouble->times && trouble->given >= trouble->times)
        return 0;
    trouble->given++;
    return trouble->code != NVML_SUCCESS;
}

/* Waits as long as the script hangs the call, then tells its error. Holds the lock at the start and at the end. */
static nvmlReturn_t suffer(int fn, int gpu, int mig)
{
    for (int waited = 0;;) {
        World *now = mock_world();
        if (!now)
            return NVML_ERROR_UNKNOWN;
        Trouble *all = trouble_in(mock_part(now, GLOBAL, WHOLE), fn);
        Trouble *own = gpu == GLOBAL ? NULL : trouble_in(mock_part(now, gpu, mig), fn);
        if (!own && mig != WHOLE)
            own = trouble_in(mock_part(now, gpu, WHOLE), fn);
        if ((all && all->hang) || (own && own->hang)) {
            if (!waited++)
                atomic_fetch_add(&control->waiting, 1);
            mock_unlock();
            mock_pause(POLL_US);
            mock_lock();
            continue;
        }
        if (waited)
            atomic_fetch_sub(&control->waiting, 1);
        unsigned delay = (all ? all->delay_us : 0) + (own ? own->delay_us : 0);
        nvmlReturn_t code = all && due(all) ? all->code : own && due(own) ? own->code : NVML_SUCCESS;
        if (delay) {
            mock_unlock();
            mock_pause(delay);
            mock_lock();
        }
        return code;
    }
}

nvmlReturn_t mock_enter_global(int fn, Part **part)
{
    mock_lock();
    nvmlReturn_t code = mock_world() ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    if (code == NVML_SUCCESS) {
        count(fn, MAX_GPUS);
        code = suffer(fn, GLOBAL, WHOLE);
    }
    if (code == NVML_SUCCESS && fn != FN_nvmlInit_v2 && fn != FN_nvmlInitWithFlags)
        code = mock_opened();
    if (code == NVML_SUCCESS)
        *part = mock_part(mock_world(), GLOBAL, WHOLE);
    else
        mock_unlock();
    return code;
}

static nvmlReturn_t enter(int fn, nvmlDevice_t device, Part **part)
{
    if (!mock_world())
        return NVML_ERROR_UNKNOWN;
    if (mock_opened() != NVML_SUCCESS)
        return NVML_ERROR_UNINITIALIZED;
    Handle *handle = known(device);
    count(fn, handle ? handle->gpu : MAX_GPUS + 1);
    if (!handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = suffer(fn, handle->gpu, handle->mig);
    if (code != NVML_SUCCESS)
        return code;
    if (mock_opened() != NVML_SUCCESS)
        return NVML_ERROR_UNINITIALIZED; /* the driver was reloaded while the call hung */
    *part = mock_part(mock_world(), handle->gpu, handle->mig);
    return *part ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t mock_enter(int fn, nvmlDevice_t device, Part **part)
{
    mock_lock();
    nvmlReturn_t code = enter(fn, device, part);
    if (code != NVML_SUCCESS)
        mock_unlock();
    return code;
}

nvmlReturn_t mock_take(Part *part, unsigned fn, unsigned a0, unsigned a1, Answer *answer)
{
    Scripted *scripted = mock_find(part, fn, a0, a1);
    if (!scripted)
        return NVML_ERROR_NOT_SUPPORTED;
    if (scripted->code == NVML_SUCCESS) {
        mock_answer(scripted, answer);
        mock_overlay(part, fn, a0, answer);
    }
    return scripted->code;
}

nvmlReturn_t mock_ask(int fn, nvmlDevice_t device, unsigned a0, unsigned a1, Answer *answer)
{
    Part *part;
    nvmlReturn_t code = mock_enter(fn, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = mock_take(part, (unsigned)fn, a0, a1, answer);
    mock_unlock();
    return code;
}

nvmlReturn_t mock_ask_global(int fn, unsigned a0, unsigned a1, Answer *answer)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(fn, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = mock_take(part, (unsigned)fn, a0, a1, answer);
    mock_unlock();
    return code;
}
