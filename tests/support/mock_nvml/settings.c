/* What can be set. It lies in a mapped file beside the script, as it lies in the driver: it outlives the process that set
 * it, and ends with the driver (a new epoch). A setter that the script ignores says yes and does nothing; one that it
 * answers with a number puts that in force, whatever was asked. */
#include "mock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    _Atomic unsigned epoch, limited, limit, locked, low, high, persistence_set, persistence;
} Settings;

static Settings *settings;

void mock_attach_settings(const char *script)
{
    char name[4200];
    snprintf(name, sizeof name, "%s.settings", script);
    int file = open(name, O_RDWR | O_CREAT, 0600);
    size_t size = MAX_GPUS * sizeof *settings;
    if (file < 0 || ftruncate(file, (off_t)size) != 0)
        abort();
    settings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (settings == MAP_FAILED)
        abort();
}

static Settings *of(const Part *part)
{
    Settings *found = &settings[part->gpu];
    unsigned epoch = mock_world()->epoch;
    if (atomic_load(&found->epoch) != epoch) {
        atomic_store(&found->limited, 0);
        atomic_store(&found->locked, 0);
        atomic_store(&found->persistence_set, 0);
        atomic_store(&found->epoch, epoch);
    }
    return found;
}

void mock_overlay(const Part *part, unsigned fn, unsigned a0, Answer *answer)
{
    if (part->gpu == GLOBAL || part->mig != WHOLE)
        return;
    Settings *found = of(part);
    if (atomic_load(&found->limited)) {
        if (fn == FN_nvmlDeviceGetPowerManagementLimit)
            answer->u[0] = atomic_load(&found->limit);
        if (fn == FN_nvmlDeviceGetEnforcedPowerLimit && atomic_load(&found->limit) < answer->u[0])
            answer->u[0] = atomic_load(&found->limit);
    }
    if (atomic_load(&found->locked) && fn == FN_nvmlDeviceGetClockInfo && a0 == NVML_CLOCK_SM &&
        answer->u[0] > atomic_load(&found->high))
        answer->u[0] = atomic_load(&found->high);
    if (atomic_load(&found->persistence_set) && fn == FN_nvmlDeviceGetPersistenceMode)
        answer->u[0] = atomic_load(&found->persistence);
}

/* Enters the call; 1 where there is something to set, 0 where the script ignores it. */
static nvmlReturn_t begin(int fn, nvmlDevice_t device, Part **part, int *effective)
{
    nvmlReturn_t code = mock_enter(fn, device, part);
    if (code != NVML_SUCCESS)
        return code;
    *effective = !(*part)->trouble[fn].ignore;
    return NVML_SUCCESS;
}

static nvmlReturn_t set_limit(int fn, nvmlDevice_t device, unsigned milliwatts)
{
    Answer range;
    Part *part;
    int effective;
    if (mock_ask(FN_nvmlDeviceGetPowerManagementLimitConstraints, device, 0, 0, &range) == NVML_SUCCESS &&
        (milliwatts < range.u[0] || milliwatts > range.u[1]))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = begin(fn, device, &part, &effective);
    if (code != NVML_SUCCESS)
        return code;
    const Scripted *instead = mock_find(part, (unsigned)fn, 0, 0);
    if (effective) {
        Settings *found = of(part);
        atomic_store(&found->limit, instead ? (unsigned)instead->numbers[0].u : milliwatts);
        atomic_store(&found->limited, 1);
    }
    mock_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts)
{
    return set_limit(FN_nvmlDeviceSetPowerManagementLimit, device, milliwatts);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    if (value->version != nvmlPowerValue_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return set_limit(FN_nvmlDeviceSetPowerManagementLimit_v2, device, value->powerValueMw);
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int low, unsigned int high)
{
    Part *part;
    int effective;
    nvmlReturn_t code = begin(FN_nvmlDeviceSetGpuLockedClocks, device, &part, &effective);
    if (code != NVML_SUCCESS)
        return code;
    if (effective) {
        Settings *found = of(part);
        atomic_store(&found->low, low);
        atomic_store(&found->high, high);
        atomic_store(&found->locked, 1);
    }
    mock_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    Part *part;
    int effective;
    nvmlReturn_t code = begin(FN_nvmlDeviceResetGpuLockedClocks, device, &part, &effective);
    if (code != NVML_SUCCESS)
        return code;
    if (effective)
        atomic_store(&of(part)->locked, 0);
    mock_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    Part *part;
    int effective;
    nvmlReturn_t code = begin(FN_nvmlDeviceSetPersistenceMode, device, &part, &effective);
    if (code != NVML_SUCCESS)
        return code;
    if (effective) {
        atomic_store(&of(part)->persistence, (unsigned)mode);
        atomic_store(&of(part)->persistence_set, 1);
    }
    mock_unlock();
    return NVML_SUCCESS;
}
