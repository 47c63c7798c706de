/* Linked into each static program. It restricts name lookups to the two methods that glibc itself contains: files (such as /etc/hosts) and DNS.
 *
 * For any other method in /etc/nsswitch.conf, such as `resolve` or `mymachines`, glibc would load a library, and that library would load the
 * host's C library. If the host's C library and the program's glibc have different versions, the program may crash during the lookup. */
#include <nss.h>

__attribute__((constructor)) static void look_up_names_in_files_and_dns(void)
{
    __nss_configure_lookup("hosts", "files dns");
    __nss_configure_lookup("passwd", "files");
    __nss_configure_lookup("group", "files");
}
