/* Linked into static programs: names are looked up by what is built into them, in files and in the DNS.
 *
 * What else /etc/nsswitch.conf names, such as `resolve` or `mymachines`, are libraries that the C library would load. In a static program
 * it can do so only if they are of its own version: otherwise the program dies in the middle of a look-up. */
#include <nss.h>

__attribute__((constructor)) static void look_up_names_in_files_and_dns(void)
{
    __nss_configure_lookup("hosts", "files dns");
    __nss_configure_lookup("passwd", "files");
    __nss_configure_lookup("group", "files");
}
