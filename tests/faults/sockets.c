/* Calls of TCP sockets of a process, counted; at the n-th one its connection is cut and the call fails.
 *
 * Loaded with LD_PRELOAD, so that the calls of frameworks' own C++ (gloo, torch's store, gRPC) are seen too. A process
 * counts after it has called sockets_arm, and a fork of it anew after its own call.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long counted;
static long strikes_at = -1; /* -1: not counted */
static int failing_with;
static char log_path[4096];

/* Count from 0; fail the `number`-th call (0: none) with `error`, and write its name into the file `log`. */
void sockets_arm(long number, int error, const char *log) {
    strncpy(log_path, log, sizeof log_path - 1);
    failing_with = error;
    atomic_store(&counted, 0);
    strikes_at = number;
}

/* Count no more. Returns the number of calls so far. */
long sockets_disarm(void) {
    strikes_at = -1;
    return atomic_load(&counted);
}

static int is_tcp(int fd) {
    struct stat about;
    int domain = 0, kind = 0;
    socklen_t size = sizeof domain;
    if (fstat(fd, &about) || !S_ISSOCK(about.st_mode)) return 0;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size)) return 0;
    size = sizeof kind;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size)) return 0;
    return (domain == AF_INET || domain == AF_INET6) && kind == SOCK_STREAM;
}

static int struck(int fd, const char *name) {
    if (strikes_at < 0) return 0;
    int before = errno, tcp = is_tcp(fd);
    errno = before;
    if (!tcp || atomic_fetch_add(&counted, 1) + 1 != strikes_at) return 0;
    int log = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    syscall(SYS_write, log, name, strlen(name));
    syscall(SYS_close, log);
    shutdown(fd, SHUT_RDWR);
    errno = failing_with;
    return 1;
}

#define WRAPPED(type, name, given, passed)                   \
    type name given {                                        \
        static typeof(&name) real;                           \
        if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name); \
        return struck(fd, #name) ? -1 : real passed;         \
    }

WRAPPED(int, connect, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size))
WRAPPED(int, accept, (int fd, struct sockaddr *from, socklen_t *size), (fd, from, size))
WRAPPED(int, accept4, (int fd, struct sockaddr *from, socklen_t *size, int flags), (fd, from, size, flags))
WRAPPED(ssize_t, send, (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
WRAPPED(ssize_t, sendto, (int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length),
        (fd, data, size, flags, to, length))
WRAPPED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
WRAPPED(ssize_t, recv, (int fd, void *data, size_t size, int flags), (fd, data, size, flags))
WRAPPED(ssize_t, recvfrom, (int fd, void *data, size_t size, int flags, struct sockaddr *from, socklen_t *length),
        (fd, data, size, flags, from, length))
WRAPPED(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
WRAPPED(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
WRAPPED(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRAPPED(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRAPPED(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
