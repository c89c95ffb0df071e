#!/bin/sh
# Makes the agent's image of what has been built, without a registry: deploy/image/build.sh DIRECTORY
# The same programs give the same image, byte for byte. Needs buildah, or only lays out DIRECTORY/image for another builder.
set -eu
cd "$(dirname "$0")/../.."
out=$1
built=${CARGO_TARGET_DIR:-target}/release
stage=$out/image
rm -rf "$stage"
# Containers write nothing here; what the agent and the runtime mount is mounted at directories that are there.
for directory in bin lib/millrace share/millrace etc/millrace etc/cdi run/millrace var/lib/millrace var/lib/kubelet/device-plugins \
    var/log/pods; do
    install -d --mode=755 "$stage/$directory"
done
install --mode=755 "$built/millrace-static" "$stage/bin/millrace"
for program in millrace-device-plugin millrace-cluster; do
    install --mode=755 "$built/$program" "$stage/bin/$program"
done
strip --strip-unneeded -o "$stage/lib/millrace/libmillrace_preload.so" "$built/libmillrace_preload.so"
chmod 755 "$stage/lib/millrace/libmillrace_preload.so"
install --mode=644 LICENSE "$stage/share/millrace/LICENSE"
cargo --quiet xtask sbom >"$stage/share/millrace/sbom.cdx.json"
chmod 644 "$stage/share/millrace/sbom.cdx.json"
cp "$stage/share/millrace/sbom.cdx.json" "$out/millrace-image.cdx.json"
version=$("$stage/bin/millrace" --version | cut -d ' ' -f 2)

command -v buildah >/dev/null || {
    echo "$stage is ready; buildah is not here, so: podman build -f deploy/image/Containerfile $stage" >&2
    exit 1
}
# Storage of its own: an image that is made is not one that the machine has.
storage=$(mktemp -d)
trap 'rm -rf "$storage"' EXIT
run() { buildah --root "$storage/root" --runroot "$storage/run" --storage-driver vfs "$@"; }
name=localhost/millrace:$version
run build --quiet --timestamp 0 --isolation chroot --file deploy/image/Containerfile --tag "$name" "$stage" >/dev/null
run push --quiet "$name" "oci:$storage/oci:$name"
image=$out/millrace-image-$version.tar
tar --directory "$storage/oci" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --create --file "$image" .
echo "$image"
