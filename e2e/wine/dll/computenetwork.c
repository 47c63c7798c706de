/*
 * computenetwork.dll for tests: an HNS that keeps its objects in a file. It has the functions that localnet-win calls. Wine has no HNS.
 *
 * The environment variable LOCALNET_HNS contains the file's path. Each line of the file is one object: kind, identifier and JSON, separated by
 * tabs. The library reads the file at each call. A test can therefore read the file, change it while the program runs, and start the program
 * again. The library refuses the calls that the contract suite (backend-win/src/hcn/contract.rs) expects it to refuse. It does not know which
 * other calls the real HNS refuses.
 *
 * The caller must close handles, and free strings with CoTaskMemFree. When the library is unloaded, it appends to the file LOCALNET_HNS_LOG how
 * many of them the caller has forgotten. It also appends one line for each call that changes something or fails.
 */
#define COBJMACROS
#include <windows.h>
#include <objbase.h>
#include <computenetwork.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define NOT_FOUND ((HRESULT)0x80070490)
#define ALREADY_EXISTS ((HRESULT)0x800700b7)
#define PORT_ALREADY_EXISTS ((HRESULT)0x803b0013)
#define ENDPOINT_NOT_FOUND ((HRESULT)0x803b0002)
#define INVALID_JSON ((HRESULT)0x803b001b)
#define INVALID_JSON_REFERENCE ((HRESULT)0x803b001c)
#define INVALID_INTERNAL_PORT ((HRESULT)0x803b002d)
#define HAS_REFERENCES ((HRESULT)0x803b002c)
#define NOT_IMPLEMENTED ((HRESULT)0x80004001)

#define EXPORT __declspec(dllexport)

enum kind { NETWORK, ENDPOINT, BALANCER, KINDS };
static const char *const KIND[KINDS] = { "network", "endpoint", "balancer" };

struct object {
    enum kind kind;
    char id[37];
    char *json;
};

struct handle {
    DWORD magic;
    enum kind kind;
    char id[37];
};
#define MAGIC 0x6c6e6574

static CRITICAL_SECTION lock;
static struct object *objects;
static size_t count;
static long handles;

/* ---- strings that are given away, and whether they come back ---- */

static void **given;
static size_t given_count;

static void *STDMETHODCALLTYPE spy_pre_free(IMallocSpy *self, void *block, BOOL spied)
{
    (void)self;
    (void)spied;
    EnterCriticalSection(&lock);
    for (size_t at = 0; at < given_count; at++)
        if (given[at] == block) {
            given[at] = given[--given_count];
            break;
        }
    LeaveCriticalSection(&lock);
    return block;
}

static HRESULT STDMETHODCALLTYPE spy_query(IMallocSpy *self, REFIID iid, void **out)
{
    if (!IsEqualIID(iid, &IID_IUnknown) && !IsEqualIID(iid, &IID_IMallocSpy))
        return E_NOINTERFACE;
    *out = self;
    return S_OK;
}
static ULONG STDMETHODCALLTYPE spy_ref(IMallocSpy *self) { (void)self; return 1; }
static SIZE_T STDMETHODCALLTYPE spy_pre_alloc(IMallocSpy *self, SIZE_T size) { (void)self; return size; }
static void *STDMETHODCALLTYPE spy_post_alloc(IMallocSpy *self, void *block) { (void)self; return block; }
static void STDMETHODCALLTYPE spy_post_free(IMallocSpy *self, BOOL spied) { (void)self; (void)spied; }
static SIZE_T STDMETHODCALLTYPE spy_pre_realloc(IMallocSpy *self, void *block, SIZE_T size, void **new, BOOL spied)
{
    (void)self; (void)spied;
    *new = block;
    return size;
}
static void *STDMETHODCALLTYPE spy_same(IMallocSpy *self, void *block, BOOL spied) { (void)self; (void)spied; return block; }
static SIZE_T STDMETHODCALLTYPE spy_size(IMallocSpy *self, SIZE_T size, BOOL spied) { (void)self; (void)spied; return size; }
static int STDMETHODCALLTYPE spy_did(IMallocSpy *self, void *block, BOOL spied, int actual) { (void)self; (void)block; (void)spied; return actual; }
static void STDMETHODCALLTYPE spy_nothing(IMallocSpy *self) { (void)self; }

static IMallocSpyVtbl spy_methods = {
    spy_query, spy_ref, spy_ref, spy_pre_alloc, spy_post_alloc, spy_pre_free, spy_post_free, spy_pre_realloc, spy_same,
    spy_same, spy_size, spy_same, spy_did, spy_nothing, spy_nothing,
};
static IMallocSpy spy = { &spy_methods };

/* A string of the caller's, from UTF-8. Also for vmcompute.dll. */
EXPORT WCHAR *LocalnetGive(const char *text)
{
    static BOOL spying;
    EnterCriticalSection(&lock);
    if (!spying)
        spying = SUCCEEDED(CoRegisterMallocSpy(&spy));
    LeaveCriticalSection(&lock);
    int length = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    WCHAR *wide = CoTaskMemAlloc(length * sizeof(WCHAR));
    MultiByteToWideChar(CP_UTF8, 0, text, -1, wide, length);
    EnterCriticalSection(&lock);
    given = realloc(given, (given_count + 1) * sizeof *given);
    given[given_count++] = wide;
    LeaveCriticalSection(&lock);
    return wide;
}

/* ---- text ---- */

static char *utf8(const WCHAR *wide)
{
    int length = WideCharToMultiByte(CP_UTF8, 0, wide, -1, NULL, 0, NULL, NULL);
    char *text = malloc(length);
    WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, length, NULL, NULL);
    return text;
}

static void note(const char *format, ...)
{
    const char *path = getenv("LOCALNET_HNS_LOG");
    FILE *file = path ? fopen(path, "ab") : NULL;
    if (!file)
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

/* ---- the file ---- */

static void forget(void)
{
    for (size_t at = 0; at < count; at++)
        free(objects[at].json);
    free(objects);
    objects = NULL;
    count = 0;
}

static struct object *find(enum kind kind, const char *id)
{
    for (size_t at = 0; at < count; at++)
        if (objects[at].kind == kind && !_stricmp(objects[at].id, id))
            return &objects[at];
    return NULL;
}

static void add(enum kind kind, const char *id, const char *json)
{
    objects = realloc(objects, (count + 1) * sizeof *objects);
    struct object *object = &objects[count++];
    object->kind = kind;
    snprintf(object->id, sizeof object->id, "%s", id);
    object->json = _strdup(json);
}

static void discard(struct object *object)
{
    free(object->json);
    *object = objects[--count];
}

/* The file that `objects` is, so that many objects need not be read again at each call. */
static BY_HANDLE_FILE_INFORMATION known;

static BY_HANDLE_FILE_INFORMATION identity(FILE *file)
{
    BY_HANDLE_FILE_INFORMATION now = { 0 };
    GetFileInformationByHandle((HANDLE)_get_osfhandle(_fileno(file)), &now);
    return now;
}

static BOOL is_known(BY_HANDLE_FILE_INFORMATION now)
{
    return now.nFileIndexLow == known.nFileIndexLow && now.nFileIndexHigh == known.nFileIndexHigh && now.nFileSizeLow == known.nFileSizeLow &&
           !CompareFileTime(&now.ftLastWriteTime, &known.ftLastWriteTime);
}

static void load(void)
{
    const char *path = getenv("LOCALNET_HNS");
    /* It may be replaced at this moment: then it is there a moment later. */
    FILE *file = NULL;
    for (int attempt = 0; path && !file && attempt < 50; attempt++) {
        file = fopen(path, "rb");
        if (!file)
            Sleep(10);
    }
    if (!file) {
        forget();
        known = (BY_HANDLE_FILE_INFORMATION){ 0 };
        return;
    }
    BY_HANDLE_FILE_INFORMATION now = identity(file);
    if (is_known(now)) {
        fclose(file);
        return;
    }
    forget();
    known = now;
    static char line[1 << 20];
    while (fgets(line, sizeof line, file)) {
        char *id = strchr(line, '\t');
        char *json = id ? strchr(id + 1, '\t') : NULL;
        if (!json)
            continue;
        *id++ = 0;
        *json++ = 0;
        json[strcspn(json, "\r\n")] = 0;
        for (enum kind kind = NETWORK; kind < KINDS; kind++)
            if (!strcmp(line, KIND[kind]))
                add(kind, id, json);
    }
    fclose(file);
}

static void save(void)
{
    const char *path = getenv("LOCALNET_HNS");
    if (!path)
        return;
    known = (BY_HANDLE_FILE_INFORMATION){ 0 };
    char new[MAX_PATH];
    snprintf(new, sizeof new, "%s.new", path);
    FILE *file = fopen(new, "wb");
    if (!file)
        return;
    /* In one write: each costs much under Wine. */
    size_t size = 1;
    for (size_t at = 0; at < count; at++)
        size += strlen(objects[at].json) + 64;
    char *text = malloc(size), *end = text;
    for (size_t at = 0; at < count; at++)
        end += sprintf(end, "%s\t%s\t%s\n", KIND[objects[at].kind], objects[at].id, objects[at].json);
    fwrite(text, 1, end - text, file);
    free(text);
    fflush(file);
    known = identity(file);
    fclose(file);
    MoveFileExA(new, path, MOVEFILE_REPLACE_EXISTING);
}

/* ---- calls ---- */

static void id_text(const GUID *id, char text[37])
{
    snprintf(text, 37, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", (unsigned long)id->Data1, id->Data2, id->Data3, id->Data4[0],
             id->Data4[1], id->Data4[2], id->Data4[3], id->Data4[4], id->Data4[5], id->Data4[6], id->Data4[7]);
}

static HRESULT refuse(const char *call, const char *id, HRESULT code, PWSTR *record)
{
    const char *text = code == NOT_FOUND                ? "Element not found."
                       : code == PORT_ALREADY_EXISTS    ? "The specified port already exists."
                       : code == INVALID_JSON           ? "Invalid JSON document string."
                       : code == INVALID_JSON_REFERENCE ? "The reference is invalid in the JSON document. A Reference is required"
                       : code == INVALID_INTERNAL_PORT  ? "The internal port must exist and cannot be zero."
                       : code == NOT_IMPLEMENTED        ? "Not implemented"
                                                        : "No.";
    char json[256];
    snprintf(json, sizeof json, "{\"Success\":false,\"Error\":\"%s\",\"ErrorCode\":%lu}", text, (unsigned long)code);
    note("%s %s refused %08lx", call, id, (unsigned long)code);
    if (record)
        *record = LocalnetGive(json);
    return code;
}

static HRESULT enumerate(const char *call, enum kind kind, PCWSTR query, PWSTR *found, PWSTR *record)
{
    EnterCriticalSection(&lock);
    load();
    char *text = utf8(query), filter[1024], name[256], network[64], is[256];
    HRESULT result = S_OK;
    if (!is_object(text)) {
        result = refuse(call, "", INVALID_JSON, record);
    } else {
        string(field(text, "Filter"), filter, sizeof filter);
        string(field(filter, "Name"), name, sizeof name);
        string(field(filter, "VirtualNetwork"), network, sizeof network);
        char *list = calloc(count + 1, 48);
        strcat(list, "[");
        for (size_t at = 0; at < count; at++) {
            if (objects[at].kind != kind)
                continue;
            if (*name && strcmp(string(field(objects[at].json, "Name"), is, sizeof is), name))
                continue;
            if (*network && _stricmp(string(field(objects[at].json, "HostComputeNetwork"), is, sizeof is), network))
                continue;
            strcat(list, list[1] ? ",\"" : "\"");
            /* As HNS writes them. */
            strcat(list, _strupr(strcpy(is, objects[at].id)));
            strcat(list, "\"");
        }
        strcat(list, "]");
        *found = LocalnetGive(list);
        free(list);
    }
    free(text);
    LeaveCriticalSection(&lock);
    return result;
}

static HRESULT hand_out(enum kind kind, const char *id, void **out)
{
    struct handle *handle = malloc(sizeof *handle);
    handle->magic = MAGIC;
    handle->kind = kind;
    snprintf(handle->id, sizeof handle->id, "%s", id);
    handles++;
    *out = handle;
    return S_OK;
}

static HRESULT open_object(const char *call, enum kind kind, const GUID *guid, void **out, PWSTR *record)
{
    char id[37];
    id_text(guid, id);
    EnterCriticalSection(&lock);
    load();
    HRESULT result = find(kind, id) ? hand_out(kind, id, out) : refuse(call, id, NOT_FOUND, record);
    LeaveCriticalSection(&lock);
    return result;
}

/* A handle of that kind, or the end: to use another one is what a test has to see. */
static struct handle *checked(const void *raw, enum kind kind)
{
    struct handle *handle = (struct handle *)raw;
    if (!handle || handle->magic != MAGIC || handle->kind != kind) {
        note("A HANDLE IS NONE, OR OF ANOTHER KIND");
        abort();
    }
    return handle;
}

static HRESULT query_object(const char *call, enum kind kind, const void *raw, PCWSTR query, PWSTR *properties, PWSTR *record)
{
    EnterCriticalSection(&lock);
    load();
    struct handle *handle = checked(raw, kind);
    char *text = utf8(query);
    struct object *object = is_object(text) ? find(kind, handle->id) : NULL;
    HRESULT result = S_OK;
    if (object)
        *properties = LocalnetGive(object->json);
    else
        result = refuse(call, handle->id, NOT_FOUND, record);
    free(text);
    LeaveCriticalSection(&lock);
    return result;
}

static HRESULT close_object(enum kind kind, const void *raw)
{
    EnterCriticalSection(&lock);
    struct handle *handle = checked(raw, kind);
    handle->magic = 0;
    handles--;
    free(handle);
    LeaveCriticalSection(&lock);
    return S_OK;
}

/* Settings with the identifier before them. */
static char *with_id(const char *settings, const char *id)
{
    const char *rest = blank(blank(settings) + 1);
    char *json = malloc(strlen(rest) + 64);
    sprintf(json, "{\"ID\":\"%s\"%s%s", id, *rest == '}' ? "" : ",", rest);
    return json;
}

static BOOL same_address(const char *one, const char *other)
{
    const char *mine = field(one, "FrontendVIPs"), *theirs = field(other, "FrontendVIPs"), *vip, *their_vip;
    char a[64], b[64];
    if (!mine || !theirs)
        return !mine && !theirs;
    while ((vip = item(&mine)))
        for (const char *rest = theirs; (their_vip = item(&rest));)
            if (!strcmp(string(vip, a, sizeof a), string(their_vip, b, sizeof b)))
                return TRUE;
    return FALSE;
}

static BOOL collide(const char *one, const char *other)
{
    if (((number(field(one, "Flags")) ^ number(field(other, "Flags"))) & 2) || !same_address(one, other))
        return FALSE;
    const char *mine = field(one, "PortMappings"), *port, *their_port;
    while ((port = item(&mine)))
        for (const char *rest = field(other, "PortMappings"); (their_port = item(&rest));)
            if (number(field(port, "Protocol")) == number(field(their_port, "Protocol")) &&
                number(field(port, "ExternalPort")) == number(field(their_port, "ExternalPort")))
                return TRUE;
    return FALSE;
}

/* What is wrong with the settings of a load balancer. */
static HRESULT check(const char *settings, const char *itself)
{
    char id[64];
    const char *endpoints = field(settings, "HostComputeEndpoints"), *one;
    size_t named = 0;
    for (; (one = item(&endpoints)); named++)
        if (!find(ENDPOINT, string(one, id, sizeof id)))
            return ENDPOINT_NOT_FOUND;
    if (!named)
        return INVALID_JSON_REFERENCE;
    const char *ports = field(settings, "PortMappings"), *port;
    while ((port = item(&ports)))
        if (!number(field(port, "InternalPort")))
            return INVALID_INTERNAL_PORT;
    /* Of thousands of load balancers those are read in which the only address is found at all. */
    char vip[64];
    const char *vips = field(settings, "FrontendVIPs");
    string(item(&vips), vip, sizeof vip);
    BOOL several = !*vip || item(&vips);
    for (size_t at = 0; at < count; at++)
        if (objects[at].kind == BALANCER && (several || strstr(objects[at].json, vip)) && _stricmp(objects[at].id, itself) &&
            collide(settings, objects[at].json))
            return PORT_ALREADY_EXISTS;
    return S_OK;
}

static HRESULT create(const char *call, enum kind kind, const GUID *guid, PCWSTR wide, void **out, PWSTR *record)
{
    char id[37];
    id_text(guid, id);
    EnterCriticalSection(&lock);
    load();
    char *settings = utf8(wide);
    HRESULT result = !is_object(settings)  ? INVALID_JSON
                     : find(kind, id)      ? ALREADY_EXISTS
                     : kind == BALANCER    ? check(settings, "")
                                           : S_OK;
    if (SUCCEEDED(result)) {
        char *json = with_id(settings, id);
        add(kind, id, json);
        free(json);
        save();
        note("%s %s", call, id);
        result = hand_out(kind, id, out);
    } else {
        result = refuse(call, id, result, record);
    }
    free(settings);
    LeaveCriticalSection(&lock);
    return result;
}

static HRESULT delete_object(const char *call, enum kind kind, const GUID *guid, PWSTR *record)
{
    char id[37], named[64];
    id_text(guid, id);
    EnterCriticalSection(&lock);
    load();
    struct object *object = find(kind, id);
    HRESULT result = object ? S_OK : NOT_FOUND;
    for (size_t at = 0; object && kind == ENDPOINT && at < count; at++) {
        const char *endpoints = objects[at].kind == BALANCER ? field(objects[at].json, "HostComputeEndpoints") : NULL, *one;
        while ((one = item(&endpoints)))
            if (!_stricmp(string(one, named, sizeof named), id))
                result = HAS_REFERENCES;
    }
    if (SUCCEEDED(result)) {
        discard(object);
        save();
        note("%s %s", call, id);
    } else {
        result = refuse(call, id, result, record);
    }
    LeaveCriticalSection(&lock);
    return result;
}

/* ---- what is exported, as computenetwork.h declares it ---- */

#define OBJECT(name, names, kind, type)                                                                                         \
    EXPORT HRESULT WINAPI HcnEnumerate##names(PCWSTR query, PWSTR *found, PWSTR *record) \
    {                                                                                                                           \
        return enumerate("HcnEnumerate" #names, kind, query, found, record);                                                    \
    }                                                                                                                           \
    EXPORT HRESULT WINAPI HcnOpen##name(REFGUID id, type *out, PWSTR *record) \
    {                                                                                                                           \
        return open_object("HcnOpen" #name, kind, id, out, record);                                                             \
    }                                                                                                                           \
    EXPORT HRESULT WINAPI HcnQuery##name##Properties(type handle, PCWSTR query, PWSTR *properties, PWSTR *record) \
    {                                                                                                                           \
        return query_object("HcnQuery" #name "Properties", kind, handle, query, properties, record);                            \
    }                                                                                                                           \
    EXPORT HRESULT WINAPI HcnClose##name(type handle) \
    {                                                                                                                           \
        return close_object(kind, handle);                                                                                      \
    }

OBJECT(Network, Networks, NETWORK, HCN_NETWORK)
OBJECT(Endpoint, Endpoints, ENDPOINT, HCN_ENDPOINT)
OBJECT(LoadBalancer, LoadBalancers, BALANCER, HCN_LOADBALANCER)

EXPORT HRESULT WINAPI HcnCreateEndpoint(HCN_NETWORK network, REFGUID id, PCWSTR settings, PHCN_ENDPOINT endpoint, PWSTR *record)
{
    checked(network, NETWORK);
    return create("HcnCreateEndpoint", ENDPOINT, id, settings, endpoint, record);
}

EXPORT HRESULT WINAPI HcnCreateLoadBalancer(REFGUID id, PCWSTR settings, PHCN_LOADBALANCER balancer, PWSTR *record)
{
    return create("HcnCreateLoadBalancer", BALANCER, id, settings, balancer, record);
}

EXPORT HRESULT WINAPI HcnModifyLoadBalancer(HCN_LOADBALANCER raw, PCWSTR wide, PWSTR *record)
{
    static const char call[] = "HcnModifyLoadBalancer";
    EnterCriticalSection(&lock);
    load();
    struct handle *handle = checked(raw, BALANCER);
    char *settings = utf8(wide);
    struct object *object = find(BALANCER, handle->id);
    const char *version = getenv("LOCALNET_HNS_VERSION");
    HRESULT result = !object                                     ? NOT_FOUND
                     : !version || strtod(version, NULL) < 15.5  ? NOT_IMPLEMENTED
                     : !is_object(settings)                      ? INVALID_JSON
                                                                 : check(settings, handle->id);
    if (SUCCEEDED(result)) {
        free(object->json);
        object->json = with_id(settings, handle->id);
        save();
        note("%s %s", call, handle->id);
    } else {
        result = refuse(call, handle->id, result, record);
    }
    free(settings);
    LeaveCriticalSection(&lock);
    return result;
}

EXPORT HRESULT WINAPI HcnDeleteEndpoint(REFGUID id, PWSTR *record)
{
    return delete_object("HcnDeleteEndpoint", ENDPOINT, id, record);
}

EXPORT HRESULT WINAPI HcnDeleteLoadBalancer(REFGUID id, PWSTR *record)
{
    return delete_object("HcnDeleteLoadBalancer", BALANCER, id, record);
}

BOOL WINAPI DllMain(HINSTANCE instance, DWORD reason, LPVOID ending)
{
    (void)instance;
    (void)ending;
    if (reason == DLL_PROCESS_ATTACH) {
        InitializeCriticalSection(&lock);
        note("loaded");
    }
    if (reason == DLL_PROCESS_DETACH) {
        note("unloaded: %ld handles are open, %lu strings are not freed", handles, (unsigned long)given_count);
        CoRevokeMallocSpy();
    }
    return TRUE;
}
