#!/bin/sh
# Makes what a guest boots from: `make.sh DIRECTORY`. root.ext4 is a small Debian 12, vmlinuz its kernel, initrd.gz
# loads the modules that the root is reached by. Run by root, for mmdebstrap.
set -eu
place=$1
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$place"
mkdir -p "$place/initrd/bin" "$place/initrd/modules" "$place/initrd/dev" "$place/initrd/root"
cd "$place"

# The kernel is only unpacked: installed, it would bring the tools that make a general initrd, and run them.
cat > kernel.sh <<'HOOK'
set -eu
mkdir "$1/payload" "$2/kernel"
cd "$2/kernel"
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
apt-get --quiet=2 --option APT::Sandbox::User=root download "$package"
dpkg-deb --extract ./*.deb .
HOOK
mmdebstrap --quiet --variant=essential --include=e2fsprogs,mount,passwd,uidmap \
  --customize-hook="sh '$place/kernel.sh' \"\$1\" '$place'" bookworm root
mv kernel/boot/vmlinuz-* vmlinuz

cp /bin/busybox initrd/bin/busybox
ln -s busybox initrd/bin/sh
for module in $(cat "$here/modules"); do
  cp kernel/lib/modules/*/kernel/"$module".ko initrd/modules/
done
sed 's|.*/||' "$here/modules" > initrd/modules/order
cp "$here/init" initrd/init
chmod 755 initrd/init
(cd initrd && find . | busybox cpio -o -H newc) | gzip > initrd.gz

truncate -s 2G root.ext4
mke2fs -q -F -t ext4 -d root root.ext4
rm -rf root initrd kernel kernel.sh
