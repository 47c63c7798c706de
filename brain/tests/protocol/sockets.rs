//! Tests of binding sockets, and of the credentials of peers.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use localnet_brain::serve::{Listener, Options};
use localnet_proto::{Address, Revision};
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::server::{Server, applied, assemble, at, service, soon};

/// The error of binding `address`.
async fn bind_error(address: &Address) -> String {
    let error = Listener::bind(address, &Options::default()).await.unwrap_err();
    let text = format!("{error:#}");
    assert!(!text.contains('\n'), "{text}");
    assert!(text.starts_with(&format!("failed to listen on {address}: ")), "{text}");
    text
}

fn socket(folder: &Path) -> Address {
    Address::Unix(folder.join("brain.sock"))
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("brain.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std does not remove the file, so it is as after a crash");
    let listener = Listener::bind(&socket(folder.path()), &Options::default()).await.unwrap();
    tokio::net::UnixStream::connect(&path).await.unwrap();
    drop(listener);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_in_use_is_not_replaced() {
    let folder = TempDir::new().unwrap();
    let other = UnixListener::bind(folder.path().join("brain.sock")).unwrap();
    let text = bind_error(&socket(folder.path())).await;
    assert!(text.contains("another process listens on this"), "{text}");
    other.accept().unwrap();
    assert!(folder.path().join("brain.sock").exists());
}

#[tokio::test]
async fn a_socket_that_another_process_created_is_not_removed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("brain.sock");
    let listener = Listener::bind(&socket(folder.path()), &Options::default()).await.unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
}

/// Regression: of 250 peers that connected at once, those beyond 128 got EAGAIN.
#[tokio::test]
async fn five_hundred_peers_can_connect_at_once() {
    let folder = TempDir::new().unwrap();
    let address = socket(folder.path());
    let _listener = Listener::bind(&address, &Options::default()).await.unwrap();
    let dial = || UnixStream::connect(folder.path().join("brain.sock"));
    // The listener accepts none of them.
    let peers: Vec<_> = (0..500).map(|_| dial()).collect();
    for peer in peers {
        soon(peer).await.unwrap();
    }
}

#[tokio::test]
async fn the_socket_and_its_folder_belong_to_the_group() {
    let folder = TempDir::new().unwrap();
    let nested = folder.path().join("run/localnet");
    let options = Options { socket_gid: Some(4242), ..Options::default() };
    let _listener = Listener::bind(&socket(&nested), &options).await.unwrap();
    let (parent, file) = (fs::metadata(&nested).unwrap(), fs::metadata(nested.join("brain.sock")).unwrap());
    assert_eq!((parent.permissions().mode() & 0o777, parent.gid()), (0o750, 4242));
    assert_eq!((file.permissions().mode() & 0o777, file.gid()), (0o660, 4242));
}

#[tokio::test]
async fn errors_of_binding_name_the_path_and_a_remedy() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("brain.sock"), "precious").unwrap();
    let text = bind_error(&socket(folder.path())).await;
    assert!(text.contains("is not a socket; remove it or choose another path"), "{text}");
    assert_eq!(fs::read(folder.path().join("brain.sock")).unwrap(), b"precious");

    let text = bind_error(&socket(&folder.path().join("brain.sock/below"))).await;
    assert!(text.contains("failed to create folder") && text.contains("--listen"), "{text}");

    // No user, not even root, can create a file here.
    let text = bind_error(&socket(Path::new("/proc/self"))).await;
    assert!(text.contains("in folder /proc/self; make it writable"), "{text}");

    let text = bind_error(&socket(&folder.path().join("x".repeat(100)))).await;
    assert!(text.contains("107 bytes"), "{text}");
}

#[tokio::test]
async fn tcp_beyond_loopback_needs_tls_or_insecure_tcp() {
    let open = Address::Tcp { host: "0.0.0.0".to_owned(), port: 0 };
    let text = bind_error(&open).await;
    assert!(text.contains("--tls-cert") && text.contains("--insecure-tcp"), "{text}");
    let options = Options { insecure_tcp: true, ..Options::default() };
    let listener = Listener::bind(&open, &options).await.unwrap();
    let Address::Tcp { port, .. } = listener.address() else { panic!("{listener:?}") };
    assert_ne!(*port, 0);

    let taken = Address::Tcp { host: "127.0.0.1".to_owned(), port: *port };
    let text = bind_error(&taken).await;
    assert!(text.contains("another process listens on this"), "{text}");
}

#[tokio::test]
async fn a_shutdown_removes_the_socket() {
    let server = Server::unix().await;
    let Address::Unix(path) = server.address.clone() else { panic!("not a unix socket: {}", server.address) };
    assert!(path.exists());
    server.shutdown().await;
    assert!(!path.exists());
}

fn path_of(server: &Server) -> PathBuf {
    let Address::Unix(path) = server.address.clone() else { panic!("not a unix socket: {}", server.address) };
    path
}

/// Waits until a process listens on `path`.
async fn wait_for_listener(path: &Path) {
    soon(async {
        while tokio::net::UnixStream::connect(path).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_deleted_socket_is_recreated_without_an_effect_on_readers() {
    let options = Options { socket_gid: Some(4242), ..Options::default() };
    let server = Server::unix_with(&options).await;
    let path = path_of(&server);
    server.feed.publish(applied([service("a", 1, 0)]));
    let waiting = server.reader().await.request(at(1), true).await;
    for (number, remove_folder) in [(2, false), (3, true), (4, false)] {
        fs::remove_file(&path).unwrap();
        if remove_folder {
            fs::remove_dir(path.parent().unwrap()).unwrap();
        }
        wait_for_listener(&path).await;
        let file = fs::metadata(&path).unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.gid()), (0o660, 4242));
        assert_eq!(server.reader().await.read(Revision::default(), false).await.revision(), at(1), "{number}");
    }
    server.feed.publish(applied([service("b", 1, 0)]));
    assert_eq!(soon(assemble(waiting)).await.unwrap().revision(), at(2));
    server.shutdown().await;
    assert!(!path.exists());
}

/// Only a stale socket is replaced.
#[tokio::test]
async fn a_socket_of_another_process_is_kept_until_it_is_deleted() {
    let server = Server::unix().await;
    let path = path_of(&server);
    server.feed.publish(applied([service("a", 1, 0)]));
    let waiting = server.reader().await.request(at(1), true).await;
    let aside = path.with_extension("other");
    let other = UnixListener::bind(&aside).unwrap();
    fs::rename(&aside, &path).unwrap();
    // The brain connects to check whether a process listens.
    soon(tokio::task::spawn_blocking({
        let other = other.try_clone().unwrap();
        move || other.accept().unwrap()
    }))
    .await
    .unwrap();
    assert!(fs::metadata(&path).is_ok());
    drop(other);
    fs::remove_file(&path).unwrap();
    wait_for_listener(&path).await;
    assert_eq!(server.reader().await.read(Revision::default(), false).await.revision(), at(1));
    server.feed.publish(applied([service("b", 1, 0)]));
    assert_eq!(soon(assemble(waiting)).await.unwrap().revision(), at(2));
    server.shutdown().await;
}

/// Sends an HTTP/2 preface as a member of these groups. Returns whether the server answers.
fn is_answered(path: &Path, gid: &str, groups: &str) -> bool {
    let script = r#"use Socket; socket(S, AF_UNIX, SOCK_STREAM, 0) && connect(S, sockaddr_un($ARGV[0])) || die $!;
        syswrite(S, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" . "\0\0\0\4\0\0\0\0\0"); exit !sysread(S, my $answer, 9)"#;
    let mut command = Command::new("setpriv");
    command.args(["--regid", gid, "--groups", groups, "perl", "-e", script]).arg(path);
    command.status().unwrap().success()
}

#[tokio::test]
async fn members_of_an_allowed_group_are_served() {
    let server = Server::unix_with(&Options { allow_gids: vec![4242], ..Options::default() }).await;
    let path = path_of(&server);
    let rows = [("1", "4242", true), ("1", "7,4242,9", true), ("4242", "7", true), ("1", "7,42", false)];
    for (gid, groups, expected) in rows {
        let path = path.clone();
        let answered = soon(tokio::task::spawn_blocking(move || is_answered(&path, gid, groups))).await.unwrap();
        assert_eq!(answered, expected, "group {gid}, in {groups}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn only_allowed_peers_are_served() {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let rows = [
        (vec![], vec![], true),
        (vec![uid], vec![], true),
        (vec![], vec![gid], true),
        (vec![uid + 1], vec![gid], true),
        (vec![uid], vec![gid + 1], true),
        (vec![uid + 1], vec![], false),
        (vec![], vec![gid + 1], false),
        (vec![uid + 1], vec![gid + 1], false),
    ];
    for (allow_uids, allow_gids, served) in rows {
        let options = Options { allow_uids, allow_gids, ..Options::default() };
        let server = Server::unix_with(&options).await;
        server.feed.publish(applied([service("a", 1, 0)]));
        if served {
            assert_eq!(server.reader().await.read(Revision::default(), false).await.revision(), at(1));
        } else {
            let mut reader = match crate::server::connect(
                server.address.clone(),
                tonic::transport::Endpoint::from_static("http://brain"),
            )
            .await
            {
                Ok(channel) => localnet_proto::wire::endpoints_client::EndpointsClient::new(channel),
                Err(_) => continue,
            };
            soon(reader.next(localnet_proto::wire::NextFilter::default())).await.unwrap_err();
        }
        server.shutdown().await;
    }
}
