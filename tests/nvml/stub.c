/* A stand-in for libnvidia-ml.so.1: what kvlogd asks of NVML, answered from a text file that a test changes at will.
 *
 *   gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 stub.c
 *   LD_LIBRARY_PATH=… NVML_STUB=FILE
 *
 * Each line is `NAME VALUE`. Looked up before each call, the first that is there counts:
 *   FUNCTION.err, FUNCTION.ms          for all GPUs: fail with that code, hang for so long first
 *   N.err, N.FUNCTION.err              for GPU number N
 *   N.KEY, KEY                         its values: uuid name total used reserved util mem temp power limit sm mclk
 *                                      reasons mig corrected uncorrected procs xid; `-` is "not supported"
 *   count, driver, device              `device` names a file that nvmlInit opens and keeps, as the real one does */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, SMALL = 7, TIMEOUT = 10, BAD_VERSION = 25 };
#define MOST 64
#define EXPORT __attribute__((visibility("default")))
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { char seen[64]; } Device;

static Device devices[MOST];
static int is_open;

static int lookup(const char *name, char *value) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[1024], key[128];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "%127s %511[^\n]", key, value) == 2 && !strcmp(key, name);
    if (file) fclose(file);
    return found;
}

/* The value of a key of a GPU, else of all of them. */
static int value_of(int gpu, const char *key, char *value) {
    char name[160];
    snprintf(name, sizeof name, "%d.%s", gpu, key);
    return lookup(name, value) || lookup(key, value);
}

static int number(int gpu, const char *key, u64 otherwise, u64 *out) {
    char value[512];
    *out = otherwise;
    if (!value_of(gpu, key, value)) return OK;
    if (!strcmp(value, "-")) return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return OK;
}

static int number32(int gpu, const char *key, u64 otherwise, u32 *out) {
    u64 wide;
    int error = number(gpu, key, otherwise, &wide);
    *out = (u32)wide;
    return error;
}

static int text(int gpu, const char *key, const char *otherwise, char *out, u32 size) {
    char value[512];
    snprintf(out, size, "%s", gpu < 0 ? (lookup(key, value) ? value : otherwise) : value_of(gpu, key, value) ? value : otherwise);
    return OK;
}

static int index_of(const Device *device) {
    return device >= devices && device < devices + MOST ? (int)(device - devices) : -1;
}

/* What every call does first: hang, fail as it was told to, look whether NVML is open and the GPU there. */
static int enter(const char *function, int needs_gpu, int gpu) {
    char name[160], value[512];
    snprintf(name, sizeof name, "%s.ms", function);
    if (lookup(name, value)) {
        struct timespec nap = { atol(value) / 1000, atol(value) % 1000 * 1000000L };
        nanosleep(&nap, NULL);
    }
    snprintf(name, sizeof name, "%s.err", function);
    if (lookup(name, value)) return atoi(value);
    if (!is_open && strncmp(function, "nvmlInit", 8)) return UNINITIALIZED;
    if (!needs_gpu) return OK;
    if (gpu < 0) return INVALID;
    snprintf(name, sizeof name, "%d.%s.err", gpu, function);
    if (lookup(name, value)) return atoi(value);
    snprintf(name, sizeof name, "%d.err", gpu);
    return lookup(name, value) ? atoi(value) : OK;
}
#define LIBRARY do { int error_ = enter(__func__, 0, 0); if (error_) return error_; } while (0)
#define GPU do { int error_ = enter(__func__, 1, index_of(d)); if (error_) return error_; } while (0)
#define ME index_of(d)

EXPORT int nvmlInitWithFlags(u32 flags) {
    char path[512];
    (void)flags;
    LIBRARY;
    if (lookup("device", path)) (void)!open(path, O_RDONLY | O_CLOEXEC);
    is_open = 1;
    return OK;
}
EXPORT int nvmlShutdown(void) { LIBRARY; is_open = 0; return OK; }
EXPORT const char *nvmlErrorString(int error) { return error ? "an error of the stub" : "Success"; }
EXPORT int nvmlSystemGetDriverVersion(char *out, u32 size) { LIBRARY; return text(-1, "driver", "580.95.05", out, size); }

static u32 count(void) { char value[512]; return lookup("count", value) ? (u32)atoi(value) : 1; }
EXPORT int nvmlDeviceGetCount_v2(u32 *out) { LIBRARY; *out = count(); return OK; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out) {
    int error = enter(__func__, 1, (int)index);
    *out = &devices[index % MOST];
    return index >= count() ? INVALID : error;
}
EXPORT int nvmlDeviceGetUUID(Device *d, char *out, u32 size) {
    char otherwise[64];
    GPU;
    snprintf(otherwise, sizeof otherwise, "GPU-5e1f0000-0000-4000-8000-%012d", ME);
    return text(ME, "uuid", otherwise, out, size);
}
EXPORT int nvmlDeviceGetName(Device *d, char *out, u32 size) { GPU; return text(ME, "name", "NVIDIA Test 80GB", out, size); }

typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } Memory2;
static int memory(int gpu, Memory2 *m) {
    int error = number(gpu, "total", 81559ULL << 20, &m->total);
    if (!error) error = number(gpu, "reserved", 600ULL << 20, &m->reserved);
    if (!error) error = number(gpu, "used", 70000ULL << 20, &m->used);
    m->free = m->total - m->reserved - m->used;
    return error;
}
EXPORT int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {  /* the old one counts what is reserved as used */
    Memory2 m = { 0 };
    int error;
    GPU;
    error = memory(ME, &m);
    *out = (Memory){ m.total, m.free, m.used + m.reserved };
    return error;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *out) {
    GPU;
    return out->version == 0x02000028 ? memory(ME, out) : BAD_VERSION;
}
EXPORT int nvmlDeviceGetUtilizationRates(Device *d, u32 *out) {
    int error;
    GPU;
    error = number32(ME, "util", 90, &out[0]);
    return error ? error : number32(ME, "mem", 40, &out[1]);
}
EXPORT int nvmlDeviceGetTemperature(Device *d, u32 sensor, u32 *out) { GPU; return sensor ? INVALID : number32(ME, "temp", 61, out); }
EXPORT int nvmlDeviceGetPowerUsage(Device *d, u32 *out) { GPU; return number32(ME, "power", 402000, out); }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(Device *d, u32 *out) { GPU; return number32(ME, "limit", 700000, out); }
EXPORT int nvmlDeviceGetClockInfo(Device *d, u32 kind, u32 *out) {
    GPU;
    return kind == 2 ? number32(ME, "mclk", 2619, out) : number32(ME, "sm", 1980, out);
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, u64 *out) { GPU; return number(ME, "reasons", 0, out); }
EXPORT int nvmlDeviceGetMigMode(Device *d, u32 *now, u32 *pending) {
    int error;
    GPU;
    error = number32(ME, "mig", 0, now);
    *pending = *now;
    return error;
}
EXPORT int nvmlDeviceGetTotalEccErrors(Device *d, u32 kind, u32 since, u64 *out) {
    (void)since;
    GPU;
    return number(ME, kind ? "uncorrected" : "corrected", 0, out);
}

typedef struct { u32 pid; u64 used; u32 instance, compute; } Process;
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, u32 *n, Process *out) {  /* procs PID:BYTES,PID,… */
    char value[512], *rest = NULL;
    u32 room = *n, have = 0;
    GPU;
    *n = 0;
    if (!value_of(ME, "procs", value)) return OK;
    if (!strcmp(value, "-")) return NOT_SUPPORTED;
    for (char *one = strtok_r(value, ",", &rest); one; one = strtok_r(NULL, ",", &rest), have++) {
        char *colon = strchr(one, ':');
        if (out && have < room) out[have] = (Process){ (u32)atoi(one), colon ? strtoull(colon + 1, NULL, 0) : ~0ULL, ~0u, ~0u };
    }
    *n = have;
    return out && have <= room ? OK : SMALL;
}

/* events: `N.xid CODE@SERIAL` is one Xid each time that SERIAL changes */
typedef struct { Device *device; u64 kind, data; u32 instance, compute; } Event;
EXPORT int nvmlEventSetCreate(void **out) { LIBRARY; *out = devices; return OK; }
EXPORT int nvmlDeviceRegisterEvents(Device *d, u64 kinds, void *set) {
    char value[512];
    (void)kinds, (void)set;
    GPU;
    snprintf(d->seen, sizeof d->seen, "%.63s", value_of(ME, "xid", value) ? value : "");
    return OK;
}
EXPORT int nvmlEventSetWait_v2(void *set, Event *out, u32 ms) {
    char value[512];
    (void)set, (void)ms;
    LIBRARY;
    for (int gpu = 0; gpu < (int)count(); gpu++)
        if (value_of(gpu, "xid", value) && strncmp(value, devices[gpu].seen, 63)) {
            snprintf(devices[gpu].seen, sizeof devices[gpu].seen, "%.63s", value);
            *out = (Event){ &devices[gpu], 8, strtoull(value, NULL, 10), ~0u, ~0u };
            return OK;
        }
    return TIMEOUT;
}
#ifndef OLD_DRIVER
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Device *d, u64 *out) { GPU; return number(ME, "reasons", 0, out); }
#endif
