"""A registry over HTTPS whose certificate an authority of the test signed, in a network of the test's own."""

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile

import pytest

import osb

# An address for documentation (RFC 5737): not loopback, for which plain HTTP would do.
HOST = "192.0.2.1:5000"
# Seconds of everything that happens in the test's network.
NETWORK_SECONDS = 120

# Run by `unshare --net`: a registry, an image in it, then what the test asks for.
SCRIPT = """
ip link set lo up
ip address add 192.0.2.1/32 dev lo
docker-registry serve config.yml >registry.log 2>&1 &
registry=$!
trap 'kill $registry' EXIT
until grep -q 'listening on' registry.log; do kill -0 $registry; sleep 0.05; done
skopeo copy --quiet --dest-cert-dir=certificates oci:layout:1 docker://$HOST/tools:1
"$@"
"""
RUN = f"./osb run --image {HOST}/tools:1 -- /bin/busybox echo it runs"


@pytest.fixture
def place(tmp_path):
    """A directory with certificates, the configuration of the registry and an image of busybox."""
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    shutil.copy2(osb.binary("OSB_BIN", "osb"), tmp_path / "osb")
    certificates(tmp_path)
    (tmp_path / "config.yml").write_text(
        "version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: registry}}\n"
        f"http: {{addr: '{HOST}', tls: {{certificate: host.pem, key: host.key}}}}\n"
    )
    layout(tmp_path / "layout")
    return tmp_path


def certificates(directory):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    fresh = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl(*fresh, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN=authority of {directory.name}")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:192.0.2.1"]
    signed += ["-addext", "basicConstraints=critical,CA:FALSE"]
    openssl(*fresh, "-keyout", "host.key", "-out", "host.pem", "-subj", "/CN=registry", *signed)
    (directory / "certificates").mkdir()
    shutil.copy(directory / "ca.pem", directory / "certificates" / "ca.crt")


def layout(directory):
    """An OCI image layout with busybox and nothing else."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(media_type, data):
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add("/bin/busybox", "bin/busybox")
    layer = layer.getvalue()
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    rootfs = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}
    config = {"architecture": architecture, "os": "linux", "rootfs": rootfs, "config": {}}
    manifest = {
        "schemaVersion": 2,
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar+gzip", gzip.compress(layer))],
    }
    index = blob("manifest.v1+json", json.dumps(manifest).encode())
    index["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [index]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def in_network(place, command, **environment):
    return subprocess.run(
        ["unshare", "--net", "sh", "-euc", SCRIPT, "sh", "sh", "-euc", command],
        cwd=place,
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "HOST": HOST,
            "OSB_DATA_DIR": str(place / "data"),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=NETWORK_SECONDS,
    )


def test_an_image_is_pulled_over_https_and_runs(place):
    ran = in_network(place, RUN, SSL_CERT_FILE=str(place / "ca.pem"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "it runs\n"


def test_a_certificate_of_an_unknown_authority_is_refused_by_its_cause(place):
    (place / "other").mkdir()
    certificates(place / "other")
    ran = in_network(place, RUN, SSL_CERT_FILE=str(place / "other/ca.pem"))
    assert ran.returncode != 0
    assert HOST in ran.stderr and "certificate" in ran.stderr.lower(), ran.stderr
    assert "UnknownIssuer" in ran.stderr or "unknown issuer" in ran.stderr.lower(), ran.stderr
