#!/bin/sh
# Makes the Debian package of what has been built: deploy/debian/build.sh DIRECTORY
set -eu
cd "$(dirname "$0")/../.."
out=$1
stage=$out/stage
rm -rf "$stage"
mkdir -p "$stage/DEBIAN"
make --no-print-directory install DESTDIR="$PWD/$stage" PREFIX=/usr >"$out/install.log" 2>&1 || { cat "$out/install.log" >&2; exit 1; }

built=$stage/usr/bin/millrace
version=$("$built" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
# The newest C library that the program asks for.
libc=$(objdump -T "$built" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2)
size=$(du -sk "$stage/usr" | cut -f 1)
sed -e "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@LIBC@|$libc|; s|@SIZE@|$size|" deploy/debian/control.in \
    >"$stage/DEBIAN/control"
echo 'activate-noawait ldconfig' >"$stage/DEBIAN/triggers"
echo 'libmillrace 0 millrace' >"$stage/DEBIAN/shlibs"
install --mode=755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$stage/DEBIAN/"
find "$stage/usr/share/man" -name '*.1' -exec gzip -9n {} +
strip --strip-unneeded "$built" "$stage/usr/lib/millrace/libmillrace_preload.so" "$stage/usr/lib/libmillrace.so.0"
install --mode=644 deploy/debian/copyright "$stage/usr/share/doc/millrace/copyright"
sed -e "s|@VERSION@|$version|" deploy/debian/changelog.in | gzip -9n >"$stage/usr/share/doc/millrace/changelog.gz"
package=$out/millrace_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$stage" "$package" >/dev/null
rm -rf "$stage"
echo "$package"
