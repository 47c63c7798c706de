/*
 * A reader of JSON, with the parts that the documents of HNS need. It copies nothing: a value is a pointer to its place in the text.
 */
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static const char *blank(const char *at)
{
    while (*at && strchr(" \t\r\n", *at))
        at++;
    return at;
}

static const char *skip(const char *at, int depth);

static const char *skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return *at ? at + 1 : NULL;
}

/* The end of the value that begins at `at`; NULL if it is none. */
static const char *skip(const char *at, int depth)
{
    at = blank(at);
    if (depth > 64)
        return NULL;
    if (*at == '"')
        return skip_string(at);
    if (*at == '{' || *at == '[') {
        char end = *at == '{' ? '}' : ']';
        BOOL named = *at == '{';
        at = blank(at + 1);
        if (*at == end)
            return at + 1;
        for (;;) {
            if (named) {
                at = blank(at);
                if (*at != '"' || !(at = skip_string(at)))
                    return NULL;
                at = blank(at);
                if (*at++ != ':')
                    return NULL;
            }
            at = skip(at, depth + 1);
            if (!at)
                return NULL;
            at = blank(at);
            if (*at == end)
                return at + 1;
            if (*at++ != ',')
                return NULL;
        }
    }
    size_t length = strcspn(at, ",]} \t\r\n");
    return length ? at + length : NULL;
}

static BOOL is_object(const char *json)
{
    json = blank(json);
    const char *end = *json == '{' ? skip(json, 0) : NULL;
    return end && !*blank(end);
}

/* The value of a field of the object at `at`. */
static const char *field(const char *at, const char *name)
{
    if (!at)
        return NULL;
    at = blank(at);
    if (*at != '{')
        return NULL;
    at = blank(at + 1);
    size_t length = strlen(name);
    while (*at == '"') {
        const char *key = at + 1;
        at = blank(skip_string(at));
        const char *value = blank(at + 1);
        if (!strncmp(key, name, length) && key[length] == '"')
            return value;
        at = blank(skip(value, 0));
        if (*at != ',')
            break;
        at = blank(at + 1);
    }
    return NULL;
}

/* The next item of an array: `*at` is the array itself, or where the last item ended. */
static const char *item(const char **at)
{
    if (!*at)
        return NULL;
    const char *here = blank(*at);
    if (*here != '[' && *here != ',')
        return NULL;
    here = blank(here + 1);
    if (*here == ']')
        return NULL;
    *at = skip(here, 0);
    return here;
}

/* A string without its quotes, in a buffer; escapes of quotes and backslashes are undone. */
static char *string(const char *at, char *buffer, size_t size)
{
    size_t length = 0;
    if (at && *at == '"')
        for (at++; *at && *at != '"' && length + 1 < size; at++) {
            if (*at == '\\' && at[1])
                at++;
            buffer[length++] = *at;
        }
    buffer[length] = 0;
    return buffer;
}

static long number(const char *at)
{
    return at ? strtol(at, NULL, 10) : 0;
}
