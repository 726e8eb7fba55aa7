/* The scripted world as tables of answers. */
#include "mock.h"

#include <stdlib.h>
#include <string.h>

static const char *const NAMES[] = {
#define ONE(fn, out) #fn,
#define ONE_BY(fn, arg, out) #fn,
#define ONE_BY2(fn, arg1, arg2, out) #fn,
#define TWO(fn, out1, out2) #fn,
#define TEXT(fn) #fn,
#define SPECIAL(fn) #fn,
#include "functions.def"
#undef ONE
#undef ONE_BY
#undef ONE_BY2
#undef TWO
#undef TEXT
#undef SPECIAL
};

const char *mock_function_name(int fn) { return NAMES[fn]; }

int mock_function_index(const char *name)
{
    for (int fn = 0; fn < FN_COUNT; fn++)
        if (strcmp(NAMES[fn], name) == 0)
            return fn;
    return -1;
}

static unsigned hash(unsigned fn, unsigned a0, unsigned a1)
{
    unsigned h = fn * 0x9E3779B1u ^ a0 * 0x85EBCA77u ^ a1 * 0xC2B2AE3Du;
    return h ^ h >> 15;
}

Scripted *mock_find(Part *part, unsigned fn, unsigned a0, unsigned a1)
{
    if (!part->slots)
        return NULL;
    for (unsigned at = hash(fn, a0, a1);; at++) {
        Scripted *found = &part->table[at & (part->slots - 1)];
        if (!found->used)
            return NULL;
        if (found->fn == fn && found->a0 == a0 && found->a1 == a1)
            return found;
    }
}

static void grow(Part *part)
{
    Scripted *old = part->table;
    unsigned slots = part->slots;
    part->slots = slots ? 2 * slots : 64;
    part->table = calloc(part->slots, sizeof *part->table);
    part->used = 0;
    for (unsigned i = 0; i < slots; i++)
        if (old[i].used)
            *mock_slot(part, old[i].fn, old[i].a0, old[i].a1) = old[i];
    free(old);
}

Scripted *mock_slot(Part *part, unsigned fn, unsigned a0, unsigned a1)
{
    Scripted *found = mock_find(part, fn, a0, a1);
    if (found)
        return found;
    if (2 * (part->used + 1) > part->slots)
        grow(part);
    unsigned at = hash(fn, a0, a1);
    while (part->table[at & (part->slots - 1)].used)
        at++;
    found = &part->table[at & (part->slots - 1)];
    *found = (Scripted){.fn = fn, .a0 = a0, .a1 = a1, .used = 1};
    part->used++;
    return found;
}

Part *mock_part(World *world, int gpu, int mig)
{
    for (int i = 0; i < world->part_count; i++)
        if (world->parts[i].gpu == gpu && world->parts[i].mig == mig)
            return &world->parts[i];
    return NULL;
}

void mock_answer(Scripted *scripted, Answer *answer)
{
    unsigned asked = scripted->asked++;
    answer->type = scripted->type;
    answer->count = scripted->count;
    *answer->text = 0;
    if (scripted->text)
        memcpy(answer->text, scripted->text, strlen(scripted->text) + 1);
    for (int i = 0; i < scripted->count; i++) {
        const Number *number = &scripted->numbers[i];
        long long more = number->wave ? (asked & 1 ? number->step : 0) : (long long)asked * number->step;
        answer->u[i] = number->u + (unsigned long long)more;
        answer->d[i] = number->d + (double)more;
    }
}
