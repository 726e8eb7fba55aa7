/* Event sets. A set is told what the script adds after the set was made. */
#include "mock.h"

#include <stdlib.h>
#include <time.h>

enum { SET_MAGIC = 0x45565453, POLL_US = 10000 };

typedef struct {
    unsigned magic, epoch;
    int next;
    unsigned long long types[MAX_GPUS];
} Set;

static Set *set_of(nvmlEventSet_t given)
{
    Set *set = (Set *)(void *)given;
    return set && set->magic == SET_MAGIC && set->epoch == mock_world()->epoch ? set : NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlEventSetCreate, &part);
    if (code != NVML_SUCCESS)
        return code;
    Set *set = calloc(1, sizeof *set);
    set->magic = SET_MAGIC;
    set->epoch = mock_world()->epoch;
    set->next = mock_world()->event_count;
    *out = (nvmlEventSet_t)(void *)set;
    mock_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t given)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlEventSetFree, &part);
    if (code != NVML_SUCCESS)
        return code;
    Set *set = set_of(given);
    if (set)
        set->magic = 0;
    mock_unlock();
    return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t given)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceRegisterEvents, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    Set *set = set_of(given);
    Scripted *supported = mock_find(part, FN_nvmlDeviceGetSupportedEventTypes, 0, 0);
    if (!set)
        code = NVML_ERROR_INVALID_ARGUMENT;
    else if (!supported || !supported->count || (types & ~supported->numbers[0].u))
        code = NVML_ERROR_NOT_SUPPORTED;
    else
        set->types[part->gpu] |= types;
    mock_unlock();
    return code;
}

/* The next event of the set; 0 where the script has none yet. */
static int next_event(Set *set, nvmlEventData_t *data)
{
    const World *world = mock_world();
    while (set->next < world->event_count) {
        const Event *event = &world->events[set->next++];
        if (event->gpu < 0 || event->gpu >= MAX_GPUS || !(set->types[event->gpu] & event->type))
            continue;
        nvmlDevice_t device = (nvmlDevice_t)(void *)mock_handle(event->gpu, WHOLE);
        *data = (nvmlEventData_t){device, event->type, event->data, event->gi, event->ci};
        return 1;
    }
    return 0;
}

static long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t given, nvmlEventData_t *data, unsigned int timeout_ms)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlEventSetWait_v2, &part);
    if (code != NVML_SUCCESS)
        return code;
    long long end = now_us() + 1000ll * timeout_ms;
    for (;;) {
        Set *set = mock_world() && mock_opened() == NVML_SUCCESS ? set_of(given) : NULL;
        if (!set) {
            code = mock_opened() == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
            break;
        }
        if (next_event(set, data))
            break;
        if (now_us() >= end) {
            code = NVML_ERROR_TIMEOUT;
            break;
        }
        mock_unlock();
        mock_pause(POLL_US);
        mock_lock();
    }
    mock_unlock();
    return code;
}
