//! Decides which Services a node serves: those that have a ClusterIP and belong to this proxy.

use crate::objects::{ServiceObject, ServiceType};

/// Whether the Service is served at all.
///
/// Headless Services (`clusterIP: None`), Services without a ClusterIP and Services of type `ExternalName` are not
/// served, whatever addresses they have. The label `service.kubernetes.io/service-proxy-name` assigns a Service to
/// another proxy, even if its value is empty. If `proxy_name` is set, this brain is such a proxy: it serves only the
/// Services whose label has this value.
pub fn is_proxied(service: &ServiceObject, proxy_name: Option<&str>) -> bool {
    let has_cluster_ip = !service.headless && !service.cluster_ips.is_empty();
    has_cluster_ip && service.kind != ServiceType::ExternalName && service.proxy_name.as_deref() == proxy_name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cluster_ip, service};

    #[track_caller]
    fn check(change: impl FnOnce(&mut ServiceObject), proxy_name: Option<&str>, expected: bool) {
        let mut object = service("10.96.0.1", &[(80, "TCP")]);
        change(&mut object);
        assert_eq!(is_proxied(&object, proxy_name), expected, "{object:?}");
    }

    #[test]
    fn services_with_a_cluster_ip_are_proxied() {
        check(|_| {}, None, true);
        check(|service| service.kind = ServiceType::NodePort, None, true);
        check(|service| service.kind = ServiceType::LoadBalancer, None, true);
    }

    #[test]
    fn headless_services_and_names_are_not() {
        check(|service| service.headless = true, None, false);
        check(|service| service.cluster_ips = [].into(), None, false);
        check(|service| service.kind = ServiceType::ExternalName, None, false);
        check(
            |service| (service.kind, service.cluster_ips) = (ServiceType::ExternalName, cluster_ip("::1")),
            None,
            false,
        );
    }

    #[test]
    fn the_proxy_name_label_selects() {
        check(|service| service.proxy_name = Some("".into()), None, false);
        check(|service| service.proxy_name = Some("mesh".into()), None, false);
        check(|service| service.proxy_name = Some("mesh".into()), Some("mesh"), true);
        check(|service| service.proxy_name = Some("other".into()), Some("mesh"), false);
        check(|_| {}, Some("mesh"), false);
    }
}
