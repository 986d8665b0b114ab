# A paused domain under a libvirt of its own, and what vcoop says of it. Runs in a mount namespace:
# nothing of this host's libvirt is seen or changed, and the files vanish with the namespace.
# usage: libvirt.sh VCOOP NAME
set -e
for folder in /run /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt; do
    mount -t tmpfs none "$folder"
done
# A domain under the host's cgroups or in namespaces of its own would leave traces outside.
printf '%s\n' 'user = "root"' 'group = "root"' 'cgroup_controllers = []' 'namespaces = []' \
    >/etc/libvirt/qemu.conf
virsh() { timeout 40 virsh -q -c qemu:///system "$@"; }
end() {
    virsh destroy "$1" >/dev/null 2>&1 || true
    kill "$libvirtd" "$virtlogd"
    wait
}
setpriv --pdeathsig KILL virtlogd 2>/run/virtlogd & virtlogd=$!
setpriv --pdeathsig KILL libvirtd 2>/run/libvirtd & libvirtd=$!
trap 'end "$2"' EXIT
for _ in $(seq 100); do
    [ -S /run/libvirt/libvirt-sock ] && break
    sleep 0.1
done
cat >/run/domain.xml <<XML
<domain type='qemu'>
  <name>$2</name>
  <memory unit='MiB'>64</memory>
  <vcpu>2</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices><memballoon model='none'/></devices>
</domain>
XML
virsh create --paused /run/domain.xml || { cat /run/libvirtd >&2; exit 1; }
# As libvirt numbers the threads.
virsh qemu-monitor-command "$2" '{"execute": "query-cpus-fast"}'
echo
"$1" vms --json
