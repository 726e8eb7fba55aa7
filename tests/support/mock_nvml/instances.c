/* MIG devices, MIG profiles and vGPU instances. */
#include "mock.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceGetMigDeviceHandleByIndex, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    if (mock_part(mock_world(), part->gpu, (int)index))
        *out = (nvmlDevice_t)(void *)mock_handle(part->gpu, (int)index);
    else
        code = NVML_ERROR_NOT_FOUND;
    mock_unlock();
    return code;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    if (part->mig == WHOLE)
        code = NVML_ERROR_INVALID_ARGUMENT;
    else
        *out = (nvmlDevice_t)(void *)mock_handle(part->gpu, WHOLE);
    mock_unlock();
    return code;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceIsMigDeviceHandle, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    *out = part->mig != WHOLE;
    mock_unlock();
    return NVML_SUCCESS;
}

int mock_instance(int gpu, unsigned instance)
{
    World *world = mock_world();
    for (int i = 0; world && i < world->part_count; i++) {
        Part *part = &world->parts[i];
        Scripted *id = mock_find(part, FN_nvmlDeviceGetGpuInstanceId, 0, 0);
        if (part->gpu == gpu && part->mig != WHOLE && id && id->count && id->numbers[0].u == instance)
            return part->mig;
    }
    return WHOLE;
}

/* The handle of a GPU instance is that of its first MIG device. */
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceGetGpuInstanceById, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    int mig = mock_instance(part->gpu, id);
    if (mig == WHOLE)
        code = NVML_ERROR_NOT_FOUND;
    else
        *out = (nvmlGpuInstance_t)(void *)mock_handle(part->gpu, mig);
    mock_unlock();
    return code;
}

/* Script, in the MIG device: instance profile start size. */
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    Part *part;
    Answer a;
    nvmlReturn_t code = mock_enter(FN_nvmlGpuInstanceGetInfo, (nvmlDevice_t)(void *)instance, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = mock_take(part, FN_nvmlGpuInstanceGetInfo, 0, 0, &a);
    if (code == NVML_SUCCESS)
        *out = (nvmlGpuInstanceInfo_t){(nvmlDevice_t)(void *)mock_handle(part->gpu, WHOLE), (unsigned)a.u[0],
                                       (unsigned)a.u[1], {(unsigned)a.u[2], (unsigned)a.u[3]}};
    mock_unlock();
    return code;
}

/* Script: id p2p slices instances multiprocessors copy-engines decoders encoders jpeg ofa memory-MB. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *out)
{
    Answer a;
    memset(&a, 0, sizeof a);
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetGpuInstanceProfileInfo, device, profile, 0, &a);
    if (code == NVML_SUCCESS)
        *out = (nvmlGpuInstanceProfileInfo_t){
            (unsigned)a.u[0], (unsigned)a.u[1], (unsigned)a.u[2], (unsigned)a.u[3], (unsigned)a.u[4], (unsigned)a.u[5],
            (unsigned)a.u[6], (unsigned)a.u[7], (unsigned)a.u[8], (unsigned)a.u[9], a.u[10]};
    return code;
}

/* Script: the profile's name; its numbers come from nvmlDeviceGetGpuInstanceProfileInfo. Versions 2 and 3. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *out)
{
    Answer name;
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstanceProfileInfo_v3_t *third = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)out;
    unsigned version = out->version;
    if (version != NVML_STRUCT_VERSION(GpuInstanceProfileInfo, 2) &&
        version != NVML_STRUCT_VERSION(GpuInstanceProfileInfo, 3))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetGpuInstanceProfileInfoV, device, profile, 0, &name);
    if (code == NVML_SUCCESS)
        code = nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &info);
    if (code != NVML_SUCCESS)
        return code;
    if (version >> 24 == 2) {
        *out = (nvmlGpuInstanceProfileInfo_v2_t){
            version, info.id, info.isP2pSupported, info.sliceCount, info.instanceCount, info.multiprocessorCount,
            info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount,
            info.memorySizeMB, ""};
        snprintf(out->name, sizeof out->name, "%s", name.text);
    } else {
        *third = (nvmlGpuInstanceProfileInfo_v3_t){
            version, info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.copyEngineCount,
            info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount, info.memorySizeMB, "", 0};
        snprintf(third->name, sizeof third->name, "%s", name.text);
    }
    return code;
}

/* Script: start size start size ... */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, profile, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    unsigned given = *count;
    *count = (unsigned)answer.count / 2;
    if (!placements)
        return NVML_SUCCESS;
    if (*count > given)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){(unsigned)answer.u[2 * i], (unsigned)answer.u[2 * i + 1]};
    return NVML_SUCCESS;
}

/* Script: the ids of the vGPU instances; what each of them is lies in the lines before the first GPU. */
nvmlReturn_t nvmlDeviceGetActiveVgpus(nvmlDevice_t device, unsigned int *count, nvmlVgpuInstance_t *instances)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetActiveVgpus, device, 0, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    unsigned given = *count;
    *count = (unsigned)answer.count;
    if (*count > given)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; instances && i < *count; i++)
        instances[i] = (nvmlVgpuInstance_t)answer.u[i];
    return NVML_SUCCESS;
}

static nvmlReturn_t vgpu_text(int fn, unsigned id, char *text, unsigned size)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(fn, id, 0, &answer);
    if (code == NVML_SUCCESS && (!text || strlen(answer.text) >= size))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (code == NVML_SUCCESS)
        snprintf(text, size, "%s", answer.text);
    return code;
}

nvmlReturn_t nvmlVgpuInstanceGetUUID(nvmlVgpuInstance_t instance, char *uuid, unsigned int size)
{
    return vgpu_text(FN_nvmlVgpuInstanceGetUUID, instance, uuid, size);
}

nvmlReturn_t nvmlVgpuInstanceGetVmID(nvmlVgpuInstance_t instance, char *id, unsigned int size, nvmlVgpuVmIdType_t *type)
{
    *type = NVML_VGPU_VM_ID_UUID;
    return vgpu_text(FN_nvmlVgpuInstanceGetVmID, instance, id, size);
}

nvmlReturn_t nvmlVgpuTypeGetName(nvmlVgpuTypeId_t type, char *name, unsigned int *size)
{
    nvmlReturn_t code = vgpu_text(FN_nvmlVgpuTypeGetName, type, name, *size);
    *size = TEXT_SIZE;
    return code;
}

nvmlReturn_t nvmlVgpuInstanceGetType(nvmlVgpuInstance_t instance, nvmlVgpuTypeId_t *type)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(FN_nvmlVgpuInstanceGetType, instance, 0, &answer);
    if (code == NVML_SUCCESS)
        *type = (nvmlVgpuTypeId_t)answer.u[0];
    return code;
}

nvmlReturn_t nvmlVgpuInstanceGetFbUsage(nvmlVgpuInstance_t instance, unsigned long long *bytes)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(FN_nvmlVgpuInstanceGetFbUsage, instance, 0, &answer);
    if (code == NVML_SUCCESS)
        *bytes = answer.u[0];
    return code;
}

nvmlReturn_t nvmlVgpuInstanceGetLicenseStatus(nvmlVgpuInstance_t instance, unsigned int *licensed)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(FN_nvmlVgpuInstanceGetLicenseStatus, instance, 0, &answer);
    if (code == NVML_SUCCESS)
        *licensed = (unsigned)answer.u[0];
    return code;
}

nvmlReturn_t nvmlVgpuTypeGetFramebufferSize(nvmlVgpuTypeId_t type, unsigned long long *bytes)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(FN_nvmlVgpuTypeGetFramebufferSize, type, 0, &answer);
    if (code == NVML_SUCCESS)
        *bytes = answer.u[0];
    return code;
}

/* Script, in the GPU: instance SM memory encoder decoder, again and again. */
nvmlReturn_t nvmlDeviceGetVgpuUtilization(nvmlDevice_t device, unsigned long long last_seen, nvmlValueType_t *type,
                                          unsigned int *count, nvmlVgpuInstanceUtilizationSample_t *samples)
{
    Answer answer;
    (void)last_seen;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetVgpuUtilization, device, 0, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    unsigned given = *count;
    *count = (unsigned)answer.count / 5;
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples || given < *count)
        return *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    for (unsigned i = 0; i < *count; i++) {
        const unsigned long long *n = answer.u + 5 * i;
        samples[i] = (nvmlVgpuInstanceUtilizationSample_t){.vgpuInstance = (unsigned)n[0], .timeStamp = i};
        samples[i].smUtil.uiVal = (unsigned)n[1];
        samples[i].memUtil.uiVal = (unsigned)n[2];
        samples[i].encUtil.uiVal = (unsigned)n[3];
        samples[i].decUtil.uiVal = (unsigned)n[4];
    }
    return NVML_SUCCESS;
}
