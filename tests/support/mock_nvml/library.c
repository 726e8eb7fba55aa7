/* Opening and closing, and finding GPUs. */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvmlReturn_t open_library(int fn)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(fn, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = mock_open();
    mock_unlock();
    return code;
}

nvmlReturn_t nvmlInit_v2(void) { return open_library(FN_nvmlInit_v2); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return open_library(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlShutdown, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = mock_close();
    mock_unlock();
    return code;
}

const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t system_text(int fn, char *text, unsigned length)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(fn, 0, 0, &answer);
    if (code == NVML_SUCCESS)
        snprintf(text, length, "%s", answer.text);
    return code;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return system_text(FN_nvmlSystemGetDriverVersion, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return system_text(FN_nvmlSystemGetNVMLVersion, version, length);
}

static nvmlReturn_t cuda(int fn, int *version)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(fn, 0, 0, &answer);
    if (code == NVML_SUCCESS)
        *version = (int)answer.u[0];
    return code;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return cuda(FN_nvmlSystemGetCudaDriverVersion, version); }

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuda(FN_nvmlSystemGetCudaDriverVersion_v2, version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlDeviceGetCount_v2, &part);
    if (code != NVML_SUCCESS)
        return code;
    World *world = mock_world();
    Scripted *scripted = mock_find(part, FN_nvmlDeviceGetCount_v2, 0, 0);
    if (scripted) { /* a count that the GPUs do not bear out */
        Answer answer;
        mock_answer(scripted, &answer);
        *count = (unsigned)answer.u[0];
        mock_unlock();
        return NVML_SUCCESS;
    }
    *count = 0;
    for (int i = 0; i < world->part_count; i++)
        *count += world->parts[i].gpu != GLOBAL && world->parts[i].mig == WHOLE;
    mock_unlock();
    return NVML_SUCCESS;
}

static int matches(Part *part, int fn, const char *text)
{
    Scripted *scripted = mock_find(part, (unsigned)fn, 0, 0);
    return scripted && scripted->text && strcmp(scripted->text, text) == 0;
}

/* The GPU at `index` of the script, or the one whose `key` function answers `text`; its own trouble is met here too. */
static nvmlReturn_t find(int fn, int key, unsigned index, const char *text, nvmlDevice_t *out)
{
    Part *part = NULL;
    nvmlReturn_t code = mock_enter_global(fn, &part);
    if (code != NVML_SUCCESS)
        return code;
    World *world = mock_world();
    Handle *found = NULL;
    for (int i = 0, at = 0; i < world->part_count && !found; i++) {
        part = &world->parts[i];
        if (part->gpu == GLOBAL || (!text && part->mig != WHOLE))
            continue;
        if (text ? matches(part, key, text) : (unsigned)at == index)
            found = mock_handle(part->gpu, part->mig);
        at++;
    }
    if (found) /* counted under its GPU instead */
        atomic_fetch_sub(&mock_control()->functions[fn].calls[MAX_GPUS], 1);
    mock_unlock();
    if (!found)
        return text ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
    code = mock_enter(fn, (nvmlDevice_t)(void *)found, &part);
    if (code != NVML_SUCCESS)
        return code;
    mock_unlock();
    *out = (nvmlDevice_t)(void *)found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return find(FN_nvmlDeviceGetHandleByIndex_v2, 0, index, NULL, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return find(FN_nvmlDeviceGetHandleByUUID, FN_nvmlDeviceGetUUID, 0, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return find(FN_nvmlDeviceGetHandleBySerial, FN_nvmlDeviceGetSerial, 0, serial, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    return find(FN_nvmlDeviceGetHandleByPciBusId_v2, FN_nvmlDeviceGetPciInfo_v3, 0, bus, device);
}
