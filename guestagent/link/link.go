// Package link lists and changes network interfaces through netlink. It knows interfaces and channels, not which driver is under test.
package link

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/pci"
)

// Bounds on what a request may set.
const (
	maxMTU      = 65535
	maxCombined = 4096
)

// List returns all links in the kernel's order.
func List(r kfile.Root) ([]agentapi.Link, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	out := make([]agentapi.Link, 0, len(links))
	for _, l := range links {
		out = append(out, describe(r, l))
	}
	return out, nil
}

func describe(r kfile.Root, l netlink.Link) agentapi.Link {
	a := l.Attrs()
	out := agentapi.Link{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0}
	device := "sys/class/net/" + a.Name + "/device"
	if d, err := r.LinkName(device, "driver"); err == nil {
		out.Driver = d
	}
	if d, err := r.LinkName(device); err == nil && pci.ValidAddress(d) {
		out.PCI = d
	}
	return out
}

func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, fault.New(agentapi.CodeNotFound, "no link %q", name)
	}
	if err != nil {
		return nil, fmt.Errorf("link %q: %w", name, err)
	}
	return l, nil
}

// Set changes a link: channels first, then MTU, then up or down, so that one request can bring a link up as wanted.
func Set(r kfile.Root, p agentapi.SetLinkParams) (agentapi.Link, error) {
	if p.MTU < 0 || p.MTU > maxMTU || p.Combined < 0 || p.Combined > maxCombined {
		return agentapi.Link{}, fault.New(agentapi.CodeInvalid, "link %q: MTU %d or %d channels: out of range (0-%d, 0-%d; 0 leaves it)",
			p.Name, p.MTU, p.Combined, maxMTU, maxCombined)
	}
	l, err := find(p.Name)
	if err != nil {
		return agentapi.Link{}, err
	}
	if p.Combined > 0 {
		if err := SetCombined(l.Attrs().Index, p.Combined); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: %d combined channels: %w", p.Name, p.Combined, err)
		}
	}
	if p.MTU > 0 {
		if err := netlink.LinkSetMTU(l, p.MTU); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: MTU %d: %w", p.Name, p.MTU, err)
		}
	}
	if p.Up != nil {
		change, word := netlink.LinkSetDown, "down"
		if *p.Up {
			change, word = netlink.LinkSetUp, "up"
		}
		if err := change(l); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: setting it %s: %w", p.Name, word, err)
		}
	}
	if l, err = find(p.Name); err != nil {
		return agentapi.Link{}, err
	}
	return describe(r, l), nil
}

// SetCombined sets the number of combined channels through ethtool's generic netlink family
// (ETHTOOL_MSG_CHANNELS_SET, Documentation/networking/ethtool-netlink.rst).
func SetCombined(index, channels int) error {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return fault.New(agentapi.CodeUnsupported, "this kernel has no ethtool netlink: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_CHANNELS_SET, Version: unix.ETHTOOL_GENL_VERSION})
	header := nl.NewRtAttr(unix.ETHTOOL_A_CHANNELS_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT, nl.Uint32Attr(uint32(channels))))
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// LoopbackUp sets the loopback link up.
func LoopbackUp() error {
	l, err := find("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}
