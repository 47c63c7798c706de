//! The users of the API server and their credentials: certificates, tokens, kubeconfigs.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use serde_json::json;

/// The users in the token file. RBAC's bootstrap roles give them rights: `system:masters` may do everything, and
/// `system:kube-proxy` is bound to `system:node-proxier`.
const USERS: [User; 2] = [
    User { kubeconfig: "admin", name: "admin", group: "system:masters" },
    User { kubeconfig: "kube-proxy", name: "system:kube-proxy", group: "system:authenticated" },
];

struct User {
    kubeconfig: &'static str,
    name: &'static str,
    group: &'static str,
}

/// The paths of the credentials in the control plane's folder.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) serving_certificate: PathBuf,
    pub(crate) serving_key: PathBuf,
    pub(crate) service_account_key: PathBuf,
    pub(crate) service_account_public_key: PathBuf,
    pub(crate) tokens: PathBuf,
    pub(crate) admin: PathBuf,
    pub(crate) kube_proxy: PathBuf,
}

impl Credentials {
    /// Writes all credentials to `folder`, for an API server at `server`.
    pub(crate) fn write(folder: &Path, server: SocketAddr) -> anyhow::Result<Credentials> {
        let write = |name: &str, content: String| -> anyhow::Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
            Ok(path)
        };
        let authority = authority().context("making a certificate authority")?;
        let (certificate, key) = serving(&authority, server.ip()).context("making a serving certificate")?;
        let accounts = KeyPair::generate().context("making a key for service accounts")?;
        let ca = write("ca.crt", authority.pem())?;

        let mut tokens = String::new();
        let mut kubeconfigs = Vec::new();
        for (uid, user) in USERS.iter().enumerate() {
            let token = format!("{:032x}", rand::random::<u128>());
            tokens += &format!("{token},{},{uid},\"{}\"\n", user.name, user.group);
            kubeconfigs
                .push(write(&format!("{}.kubeconfig", user.kubeconfig), kubeconfig(server, &ca, user.name, &token))?);
        }
        let [admin, kube_proxy] =
            <[PathBuf; USERS.len()]>::try_from(kubeconfigs).expect("one kubeconfig for each user");
        Ok(Credentials {
            serving_certificate: write("serving.crt", certificate)?,
            serving_key: write("serving.key", key)?,
            service_account_key: write("service-account.key", accounts.serialize_pem())?,
            service_account_public_key: write("service-account.pub", accounts.public_key_pem())?,
            tokens: write("tokens.csv", tokens)?,
            admin,
            kube_proxy,
        })
    }
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "localnet test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// A serving certificate and its key, as PEM.
fn serving(authority: &CertifiedIssuer<'static, KeyPair>, address: IpAddr) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), address];
    params.subject_alt_names.extend(addresses.map(SanType::IpAddress));
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, authority)?.pem(), key.serialize_pem()))
}

/// A kubeconfig as JSON, which is valid YAML.
fn kubeconfig(server: SocketAddr, ca: &Path, user: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "e2e", "cluster": { "server": format!("https://{server}"), "certificate-authority": ca } }],
        "users": [{ "name": user, "user": { "token": token } }],
        "contexts": [{ "name": "e2e", "context": { "cluster": "e2e", "user": user } }],
        "current-context": "e2e",
    });
    format!("{config:#}\n")
}
