/* A disk that takes its time: fsync and fdatasync take as many milliseconds as the file $SLOW_DISK says, or hang as
 * long as it says `stuck`. While one of them hangs, the file $SLOW_DISK.stuck is there.
 *
 *   gcc -shared -fPIC -o slow_disk.so slow_disk.c
 *   LD_PRELOAD=…/slow_disk.so SLOW_DISK=FILE */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STUCK = -1, STEP_MS = 10 };

static int wanted_ms(const char *path) {
    char said[32] = "";
    FILE *file = fopen(path, "re");
    if (file) {
        (void)!fgets(said, sizeof said, file);
        fclose(file);
    }
    return strncmp(said, "stuck", 5) ? atoi(said) : STUCK;
}

static void nap(void) {
    struct timespec left = { 0, STEP_MS * 1000000L };
    while (nanosleep(&left, &left)) {}  /* a real disk does not come back sooner for a signal */
}

static void drag(void) {
    const char *path = getenv("SLOW_DISK");
    char mark[4096];
    int has_mark = 0;
    if (!path) return;
    snprintf(mark, sizeof mark, "%s.stuck", path);
    for (int waited = 0; ; waited += STEP_MS) {
        int wanted = wanted_ms(path);
        if (wanted == STUCK && !has_mark) {
            int fd = open(mark, O_CREAT | O_CLOEXEC | O_WRONLY, 0600);
            if (fd >= 0) close(fd);
            has_mark = 1;
        }
        if (wanted != STUCK && waited >= wanted) break;
        nap();
    }
    if (has_mark) unlink(mark);
}

int fsync(int fd) { drag(); return (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { drag(); return (int)syscall(SYS_fdatasync, fd); }
