/*
 * pipe.exe NAME PORT: a server on the named pipe \\.\pipe\NAME that passes what it is told to a TCP port of this machine, and the answers back. It
 * is how a test has a brain on a named pipe. Runs until it is ended; says "listening" when it does.
 */
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

struct connection {
    HANDLE pipe;
    SOCKET socket;
};

/* Waits for what was begun on the pipe; how many bytes, or -1. */
static int finish(HANDLE pipe, BOOL done, OVERLAPPED *work)
{
    DWORD bytes;
    if (!done && GetLastError() != ERROR_IO_PENDING)
        return -1;
    return GetOverlappedResult(pipe, work, &bytes, TRUE) ? (int)bytes : -1;
}

static OVERLAPPED begin(void)
{
    OVERLAPPED work = { 0 };
    work.hEvent = CreateEventA(NULL, TRUE, FALSE, NULL);
    return work;
}

static DWORD WINAPI to_socket(void *argument)
{
    struct connection *both = argument;
    OVERLAPPED work = begin();
    char buffer[65536];
    int length;
    for (;;) {
        length = finish(both->pipe, ReadFile(both->pipe, buffer, sizeof buffer, NULL, &work), &work);
        if (length <= 0 || send(both->socket, buffer, length, 0) != length)
            break;
    }
    shutdown(both->socket, SD_BOTH);
    CloseHandle(work.hEvent);
    return 0;
}

static void to_pipe(struct connection *both)
{
    OVERLAPPED work = begin();
    char buffer[65536];
    int length;
    while ((length = recv(both->socket, buffer, sizeof buffer, 0)) > 0)
        for (int sent = 0, part; sent < length; sent += part) {
            part = finish(both->pipe, WriteFile(both->pipe, buffer + sent, length - sent, NULL, &work), &work);
            if (part <= 0)
                goto end;
        }
end:
    /* Ends a read that waits. */
    DisconnectNamedPipe(both->pipe);
    CloseHandle(work.hEvent);
}

static unsigned short port;

static DWORD WINAPI serve(void *argument)
{
    struct connection *both = argument;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    both->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(both->socket, (struct sockaddr *)&address, sizeof address)) {
        HANDLE other = CreateThread(NULL, 0, to_socket, both, 0, NULL);
        to_pipe(both);
        WaitForSingleObject(other, INFINITE);
        CloseHandle(other);
    }
    closesocket(both->socket);
    CloseHandle(both->pipe);
    free(both);
    return 0;
}

int main(int count, char **arguments)
{
    WSADATA data;
    char name[256];
    if (count != 3 || WSAStartup(MAKEWORD(2, 2), &data))
        return 2;
    snprintf(name, sizeof name, "\\\\.\\pipe\\%s", arguments[1]);
    port = (unsigned short)atoi(arguments[2]);
    for (BOOL first = TRUE;; first = FALSE) {
        HANDLE pipe = CreateNamedPipeA(name, PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED, PIPE_TYPE_BYTE | PIPE_WAIT, PIPE_UNLIMITED_INSTANCES,
                                       65536, 65536, 0, NULL);
        if (pipe == INVALID_HANDLE_VALUE)
            return 1;
        if (first) {
            puts("listening");
            fflush(stdout);
        }
        OVERLAPPED work = begin();
        BOOL there = ConnectNamedPipe(pipe, &work) || GetLastError() == ERROR_PIPE_CONNECTED;
        if (!there)
            there = finish(pipe, FALSE, &work) >= 0;
        CloseHandle(work.hEvent);
        struct connection *both = there ? calloc(1, sizeof *both) : NULL;
        if (!both) {
            CloseHandle(pipe);
            continue;
        }
        both->pipe = pipe;
        CloseHandle(CreateThread(NULL, 0, serve, both, 0, NULL));
    }
}
