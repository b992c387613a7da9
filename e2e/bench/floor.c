/*
 * The least the kernel can do for one sandbox: clone with all namespaces, an
 * overlay, control groups with limits, a system-call filter, exec of a static
 * program that exits at once, reap. `floor DIR N` does it N times below DIR and
 * prints one duration in nanoseconds per line. A yardstick, not a sandbox.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void must(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
        _exit(1);
    }
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd, path);
    must(write(fd, text, strlen(text)), path);
    close(fd);
}

static const char *groups[8];
static int group_count;

static void find_groups(void) {
    static const char *candidates[] = {
        "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids",
        "/sys/fs/cgroup/unified", "/sys/fs/cgroup",
    };
    char path[256];
    for (unsigned i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        snprintf(path, sizeof path, "%s/cgroup.procs", candidates[i]);
        if (access(path, W_OK) == 0) groups[group_count++] = candidates[i];
    }
}

static void limit(const char *group) {
    static const char *limits[][2] = {
        {"memory.limit_in_bytes", "268435456"}, {"memory.max", "268435456"},
        {"pids.max", "512"}, {"cpu.cfs_quota_us", "100000"}, {"cpu.max", "100000 100000"},
    };
    char path[512];
    for (unsigned i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(path, sizeof path, "%s/%s", group, limits[i][0]);
        if (access(path, W_OK) == 0) put(path, limits[i][1]);
    }
}

static void inside(const char *dir, int ready) {
    char byte, options[1024], path[512];
    must(read(ready, &byte, 1), "wait for the id map");
    must(setresgid(0, 0, 0), "setresgid");
    must(setresuid(0, 0, 0), "setresuid");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    snprintf(path, sizeof path, "%s/scratch", dir);
    must(mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, NULL), "tmpfs");
    snprintf(path, sizeof path, "%s/scratch/upper", dir);
    must(mkdir(path, 0755), "upper");
    snprintf(path, sizeof path, "%s/scratch/work", dir);
    must(mkdir(path, 0755), "work");
    snprintf(path, sizeof path, "%s/scratch/root", dir);
    must(mkdir(path, 0755), "root");
    snprintf(options, sizeof options,
             "lowerdir=%s/lower,upperdir=%s/scratch/upper,workdir=%s/scratch/work,userxattr,volatile",
             dir, dir, dir);
    must(mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, options), "overlay");
    must(chdir(path), "chdir");
    must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "proc");
    must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "detach the old root");
    must(sethostname("floor", 5), "hostname");
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mount, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
    char *argv[] = {"/floor", NULL};
    char *env[] = {NULL};
    execve(argv[0], argv, env);
    must(-1, "exec");
}

static void once(const char *dir, long number) {
    char group[8][256], path[512], text[64];
    int ready[2];
    must(pipe2(ready, O_CLOEXEC), "pipe");
    for (int i = 0; i < group_count; i++) {
        snprintf(group[i], sizeof group[i], "%s/floor-%d-%ld", groups[i], getpid(), number);
        must(mkdir(group[i], 0755), group[i]);
        limit(group[i]);
    }
    int flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                CLONE_NEWNET | CLONE_NEWCGROUP | SIGCHLD;
    pid_t pid = syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    must(pid, "clone");
    if (pid == 0) inside(dir, ready[0]);
    for (int i = 0; i < group_count; i++) {
        snprintf(path, sizeof path, "%s/cgroup.procs", group[i]);
        snprintf(text, sizeof text, "%d", pid);
        put(path, text);
    }
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    put(path, "0 2000000000 65536");
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    put(path, "0 2000000000 65536");
    must(write(ready[1], "x", 1), "wake the child");
    int status;
    must(waitpid(pid, &status, 0), "wait");
    if (status != 0) {
        fprintf(stderr, "floor: child ended with %d\n", status);
        _exit(1);
    }
    for (int i = 0; i < group_count; i++) must(rmdir(group[i]), group[i]);
    close(ready[0]);
    close(ready[1]);
}

int main(int argc, char **argv) {
    if (argc < 3) return 0; /* the program inside */
    find_groups();
    long count = atol(argv[2]);
    for (long number = 0; number < count; number++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        once(argv[1], number);
        clock_gettime(CLOCK_MONOTONIC, &to);
        printf("%lld\n", (to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec);
    }
    return 0;
}
