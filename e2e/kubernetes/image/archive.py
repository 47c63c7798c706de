"""Writes images of the test cluster as one OCI archive.

    archive.py test BIN ROOT MANIFEST.GO OUTPUT     Kubernetes' test images, CoreDNS and kube-proxy
    archive.py ours FOLDER ROOT VERSION OUTPUT      our programs in FOLDER, which may be linked to libraries of ROOT

BIN has the programs that build.sh makes, ROOT the file system that root.sh makes. MANIFEST.GO is Kubernetes' own list of test images
(test/utils/image/manifest.go), from which the names and versions come. All test images share one root and one layer of programs.
"""
import hashlib
import io
import json
import pathlib
import platform
import re
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).parent
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PATH = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
PLATFORM = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()], "os": "linux"}


class Archive:
    """Blobs by digest, and the names that refer to them."""

    def __init__(self):
        self.blobs, self.manifests = {}, []

    def blob(self, data):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"digest": digest, "size": len(data)}

    def image(self, names, layers, **config):
        """Adds an image. `config` has the keys of an OCI configuration: Entrypoint, Cmd, Env, User."""
        layers = [self.blob(layer) for layer in layers]
        rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
        configuration = self.blob(json.dumps({**PLATFORM, "config": config, "rootfs": rootfs}).encode())
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **configuration},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", **layer} for layer in layers],
        }
        manifest = self.blob(json.dumps(manifest).encode())
        for name in names:
            annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[1]}
            self.manifests.append({"mediaType": MANIFEST, **manifest, "annotations": annotations, "platform": PLATFORM})
        return manifest["digest"], [part["digest"] for part in (configuration, *layers)]

    def registry(self, name, tag, manifest, parts):
        """The files of an image, for agnhost's command fake-registry-server."""

        def path(kind, digest):
            algorithm, value = digest.split(":")
            return f"var/registry/{name}/{kind}/{algorithm}/{value[:2]}/{value}/data"

        files = {path("manifests", manifest): self.blobs[manifest], f"var/registry/{name}/manifests/{tag}": manifest.encode()}
        return files | {path("blobs", digest): self.blobs[digest] for digest in parts}

    def write(self, path):
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": self.manifests}).encode()
        files.update({f"blobs/{digest.replace(':', '/')}": data for digest, data in self.blobs.items()})
        with tarfile.open(path, "w") as archive:
            for name, data in files.items():
                add(archive, name, data)


def add(archive, name, data, mode=0o755):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def layer(files, links=()):
    """A layer with these files, as {path in the image: file or bytes}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, source in files.items():
            add(archive, name, source if isinstance(source, bytes) else pathlib.Path(source).read_bytes())
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return out.getvalue()


def root_layer(root):
    skip = [f"--exclude=./{folder}/*" for folder in ("dev", "proc", "sys")]
    command = ["tar", "-C", root, "--numeric-owner", "--sort=name", "--mtime=@0", *skip, "-cf", "-", "."]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def test_images(manifest):
    """The names of Kubernetes' test images: {constant: REGISTRY/NAME:VERSION}."""
    source = pathlib.Path(manifest).read_text()
    registries = dict(re.findall(r'(\w+Registry):\s*"([^"]+)"', source))
    images = re.findall(r'configs\[(\w+)\] = Config\{list\.(\w+), "([^"]+)", "([^"]+)"\}', source)
    return {constant: f"{registries[registry]}/{name}:{version}" for constant, registry, name, version in images}


def ours(archive, programs, root, version):
    base = root_layer(root)
    command = layer({"usr/bin/localnet": programs / "localnet"})
    for program in sorted(programs.glob("localnet-*")):
        path = f"usr/bin/{program.name}"
        layers = [base, command, layer({path: program})]
        archive.image([f"localhost/{program.name}:{version}"], layers, Entrypoint=[f"/{path}"], Env=PATH)


def test(archive, programs, root, manifest):
    names = test_images(manifest)
    base = root_layer(root)
    pause = archive.image([names["Pause"]], [layer({"pause": programs / "pause"})], Entrypoint=["/pause"], User="65535:65535")
    agnhost = layer(
        {
            **archive.registry("pause", "testing", *pause),
            "agnhost": programs / "agnhost",
            "coredns": programs / "coredns",
            "localhost.crt": programs / "localhost.crt",
            "localhost.key": programs / "localhost.key",
            "usr/bin/wget": HERE / "wget.sh",
        },
        links=[("agnhost-2", "agnhost"), ("usr/local/bin/iperf", "/usr/bin/iperf")],
    )
    regression = layer({"regression-issue-74839": programs / "regression-issue-74839"})
    archive.image([names["Agnhost"], names["AgnhostPrev"], "localhost/agnhost:test"], [base, agnhost], Entrypoint=["/agnhost"], Cmd=["pause"], Env=PATH)
    shells = [names[name] for name in ("BusyBox", "GlibcDnsTesting", "DistrolessIptables")]
    archive.image(shells, [base, agnhost], Cmd=["sh"], Env=PATH)
    web = ["/agnhost", "netexec", "--http-port=80"]
    archive.image([names["Nginx"], names["NginxNew"]], [base, agnhost], Entrypoint=web, Env=PATH)
    archive.image([names["RegressionIssue74839"]], [base, regression], Entrypoint=["/regression-issue-74839"], Env=PATH)
    archive.image(["localhost/coredns:test"], [base, agnhost], Entrypoint=["/coredns"])
    proxy = layer({"usr/local/bin/kube-proxy": programs / "kube-proxy"})
    archive.image(["localhost/kube-proxy:test"], [base, proxy], Entrypoint=["/usr/local/bin/kube-proxy"], Env=PATH)


def main(kind, programs, root, names, output):
    archive = Archive()
    {"test": test, "ours": ours}[kind](archive, pathlib.Path(programs), root, names)
    archive.write(output)
    print(f"{len(archive.manifests)} names in {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
