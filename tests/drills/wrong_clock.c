/* A clock that is wrong by the seconds in a file, which may change: gcc -shared -fPIC, LD_PRELOAD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *wrong_by;

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("CLOCK_WRONG_BY"), O_RDONLY);
  void *read = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
  if (read != MAP_FAILED) wrong_by = read;
}

int clock_gettime(clockid_t which, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, which, now);
  if (wrong_by && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
    now->tv_sec += *wrong_by;
  return result;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
