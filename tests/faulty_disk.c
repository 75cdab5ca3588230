/* A disk that fails, to be preloaded (LD_PRELOAD): counts the operations on files below a folder,
 * whichever library makes them, and fails one, or that one and all after it, or ends the process
 * there. Or it is full after so many bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { ONCE, FOREVER, KILL };

static char root[4096];
static atomic_int armed;
static atomic_long seen, failed, bytes_left;
static long nth;
static enum mode mode;

void faults_arm(const char *folder, long operation, int how) {
  snprintf(root, sizeof root, "%s/", folder);
  nth = operation;
  mode = how;
  seen = failed = 0;
  bytes_left = -1;
  armed = 1;
}

void faults_arm_full(const char *folder, long bytes) {
  faults_arm(folder, -1, ONCE);
  bytes_left = bytes;
}

/* Returns how many operations failed. */
long faults_disarm(void) {
  armed = 0;
  return failed;
}

static int below(const char *path) { return strncmp(path, root, strlen(root)) == 0; }

/* Whether this operation is to fail; `size` is what it writes. */
static int fails(int concerned, long size) {
  if (!armed || !concerned) return 0;
  long operation = ++seen;
  if (bytes_left >= 0 && size > 0) {
    if (bytes_left < size) {
      failed++;
      errno = ENOSPC;
      return 1;
    }
    bytes_left -= size;
  }
  if (operation != nth && !(mode == FOREVER && nth > 0 && operation > nth)) return 0;
  if (mode == KILL) _exit(137);
  failed++;
  errno = EIO;
  return 1;
}

static int fd_below(int fd) {
  char link[64], path[4096];
  if (!armed) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return below(path);
}

static int at_below(int fd, const char *path) {
  if (!armed) return 0;
  if (path[0] == '/' || fd == AT_FDCWD) return below(path);
  char link[64], whole[8192];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, whole, 4096);
  if (length < 0) return 0;
  snprintf(whole + length, sizeof whole - length, "/%s", path);
  return below(whole);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags)                       \
  mode_t permissions = 0;                 \
  if (flags & (O_CREAT | O_TMPFILE)) {    \
    va_list rest;                         \
    va_start(rest, flags);                \
    permissions = va_arg(rest, mode_t);   \
    va_end(rest);                         \
  }

#define OPEN(name)                                        \
  int name(const char *path, int flags, ...) {            \
    MODE(flags)                                           \
    if (fails(armed && below(path), 0)) return -1;        \
    return REAL(name)(path, flags, permissions);          \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                      \
  int name(int fd, const char *path, int flags, ...) {    \
    MODE(flags)                                           \
    if (fails(at_below(fd, path), 0)) return -1;          \
    return REAL(name)(fd, path, flags, permissions);      \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                       \
  FILE *name(const char *path, const char *how) {         \
    if (fails(armed && below(path), 0)) return NULL;      \
    return REAL(name)(path, how);                         \
  }
FOPEN(fopen)
FOPEN(fopen64)

#define ON_PATH(name, parameters, concerned, ...)         \
  int name parameters {                                   \
    if (fails(armed && (concerned), 0)) return -1;        \
    return REAL(name)(__VA_ARGS__);                       \
  }
ON_PATH(mkdir, (const char *path, mode_t how), below(path), path, how)
ON_PATH(mkdirat, (int fd, const char *path, mode_t how), at_below(fd, path), fd, path, how)
ON_PATH(unlink, (const char *path), below(path), path)
ON_PATH(unlinkat, (int fd, const char *path, int flags), at_below(fd, path), fd, path, flags)
ON_PATH(rmdir, (const char *path), below(path), path)
ON_PATH(rename, (const char *from, const char *to), below(from) || below(to), from, to)
ON_PATH(renameat, (int f, const char *from, int t, const char *to),
        at_below(f, from) || at_below(t, to), f, from, t, to)
ON_PATH(fsync, (int fd), fd_below(fd), fd)
ON_PATH(fdatasync, (int fd), fd_below(fd), fd)
ON_PATH(ftruncate, (int fd, off_t size), fd_below(fd), fd, size)
ON_PATH(ftruncate64, (int fd, off64_t size), fd_below(fd), fd, size)

#define TRANSFER(name, parameters, size, ...)             \
  ssize_t name parameters {                               \
    if (fails(fd_below(fd), size)) return -1;             \
    return REAL(name)(__VA_ARGS__);                       \
  }
TRANSFER(read, (int fd, void *data, size_t size), 0, fd, data, size)
TRANSFER(pread, (int fd, void *data, size_t size, off_t at), 0, fd, data, size, at)
TRANSFER(pread64, (int fd, void *data, size_t size, off64_t at), 0, fd, data, size, at)
TRANSFER(write, (int fd, const void *data, size_t size), (long)size, fd, data, size)
TRANSFER(pwrite, (int fd, const void *data, size_t size, off_t at), (long)size, fd, data, size, at)
TRANSFER(pwrite64, (int fd, const void *data, size_t size, off64_t at), (long)size, fd, data, size,
         at)
TRANSFER(writev, (int fd, const struct iovec *parts, int count), (long)count, fd, parts, count)

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  if (armed && fails(fd_below(fileno(file)), (long)(size * count))) return 0;
  return REAL(fwrite)(data, size, count, file);
}

int fflush(FILE *file) {
  if (armed && file && fails(fd_below(fileno(file)), 0)) return EOF;
  return REAL(fflush)(file);
}

int fclose(FILE *file) {
  int failing = armed && fails(fd_below(fileno(file)), 0);
  int error = errno, result = REAL(fclose)(file);
  if (!failing) return result;
  errno = error;
  return EOF;
}
