package statefile

import "golang.org/x/sys/unix"

// networkKinds are the file systems whose locks or renames other machines may not see, by statfs's magic (statfs(2)). FUSE is among
// them because what stands behind it can't be known, and is a network more often than not.
var networkKinds = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "CIFS", unix.SMB2_SUPER_MAGIC: "SMB2",
	unix.AFS_SUPER_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda", unix.CEPH_SUPER_MAGIC: "Ceph", unix.V9FS_MAGIC: "9p",
	unix.FUSE_SUPER_MAGIC: "FUSE", unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x01161970: "GFS2", 0x0bd00bd0: "Lustre", 0x47504653: "GPFS", 0x19830326: "BeeGFS",
}

// networkFileSystem names the network file system that a folder is on, or is empty.
func networkFileSystem(path string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return ""
	}
	return networkKinds[int64(stat.Type)&0xffffffff]
}
