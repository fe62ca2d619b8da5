/* Lets callgrind count programs that sleep in a ring: it runs one thread at a time, and knows of
 * io_uring_enter that it may submit, but not that it may wait, so nobody else would get on. Here
 * the wait becomes a poll of the ring. Loaded by scripts/instructions.sh, and by nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/syscall.h>

typedef long (*call)(long, ...);

long syscall(long number, ...)
{
	static call next;
	va_list rest;
	long a, b, c, d, e, f, entered;

	if (!next)
		next = (call)dlsym(RTLD_NEXT, "syscall");
	va_start(rest, number);
	a = va_arg(rest, long), b = va_arg(rest, long), c = va_arg(rest, long);
	d = va_arg(rest, long), e = va_arg(rest, long), f = va_arg(rest, long);
	va_end(rest);
	if (number != SYS_io_uring_enter || c == 0)
		return next(number, a, b, c, d, e, f);
	/* What is there already, and what is submitted and done at once, needs no sleep. */
	entered = next(number, a, b, 0L, d & ~(long)IORING_ENTER_EXT_ARG, 0L, 0L);
	if (entered >= 0) {
		struct pollfd ring = { .fd = (int)a, .events = POLLIN };

		/* What a ring defers to its thread wakes no poll, but is seen by one that begins. */
		while (poll(&ring, 1, 1) == 0 && !(d & IORING_ENTER_EXT_ARG))
			;
		next(number, a, 0L, 0L, d & ~(long)IORING_ENTER_EXT_ARG, 0L, 0L);
	}
	return entered;
}
