// The first process of a pod's sandbox, and of a node of the test cluster: waits, reaps orphans, exits on SIGINT or SIGTERM.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_signal(int number) {
    if (number != SIGCHLD) _exit(0);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGCHLD, on_signal);
    for (;;) pause();
}
