module millrace/gtpu/peer

go 1.24

require github.com/wmnsk/go-gtp v0.8.11

require (
	github.com/vishvananda/netlink v1.3.0 // indirect
	github.com/vishvananda/netns v0.0.4 // indirect
	golang.org/x/net v0.30.0 // indirect
	golang.org/x/sys v0.26.0 // indirect
)
