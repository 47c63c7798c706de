/* vmcompute.dll, as far as localnet-win calls it: the version of HNS, which LOCALNET_HNS_VERSION says. */
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

__declspec(dllexport) HRESULT WINAPI HNSCall(PCWSTR method, PCWSTR path, PCWSTR object, PWSTR *response)
{
    HMODULE other = GetModuleHandleA("computenetwork.dll");
    PWSTR (*give)(const char *) = other ? (PWSTR (*)(const char *))(void *)GetProcAddress(other, "LocalnetGive") : NULL;
    if (!give)
        return E_UNEXPECTED;
    const char *version = getenv("LOCALNET_HNS_VERSION");
    int major = 13, minor = 3;
    if (version)
        sscanf(version, "%d.%d", &major, &minor);
    char json[128];
    if (lstrcmpW(method, L"GET") || lstrcmpW(path, L"/globals/version") || *object)
        snprintf(json, sizeof json, "{\"Success\":false,\"Error\":\"Unknown request\"}");
    else
        snprintf(json, sizeof json, "{\"Success\":true,\"Output\":{\"Major\":%d,\"Minor\":%d}}", major, minor);
    *response = give(json);
    return S_OK;
}
